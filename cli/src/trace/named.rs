//! Answers of slices, with names for what they speak of.

use super::symbols::{Processors, Symbols};
use anyhow::Result;
use dsm::{PageClass, PageTrace, Site, Touch};
use serde_json::{Value, json};
use vmm::control::TraceAnswer;

/// From this address on the kernel lives.
const UPPER_HALF: u64 = 1 << 63;

/// Answers and names.
#[derive(Debug)]
pub(super) struct Named<'a> {
    pub(super) answers: &'a [TraceAnswer],
    symbols: Option<&'a Symbols>,
    processors: Processors,
}

impl<'a> Named<'a> {
    pub(super) fn new(answers: &'a [TraceAnswer], symbols: Option<&'a Symbols>) -> Self {
        let sites = answers.iter().flat_map(|answer| &answer.pages).flat_map(|page| &page.sites);
        // In its kernel, Linux keeps the processor's own data at GS.
        let kernel = sites.filter(|site| !site.user && site.gs >= UPPER_HALF);
        let processors = kernel.map(|site| (site.gs, site.vcpu)).collect();
        Self { answers, symbols, processors }
    }

    /// The place of most samples of a page.
    pub(super) fn main_site(page: &PageTrace) -> Option<&Site> {
        page.sites.iter().max_by_key(|site| site.count)
    }

    /// The code of a site.
    pub(super) fn code(&self, site: &Site) -> String {
        let name = self.symbols.and_then(|symbols| symbols.code(site.rip));
        match (name, site.user) {
            (Some(name), false) => name,
            (_, true) => format!("user {:#x}", site.rip),
            (None, false) => format!("{:#x}", site.rip),
        }
    }

    /// What lies in a page, and what a site uses of it.
    pub(super) fn data(&self, page: &PageTrace, site: Option<&Site>) -> String {
        let used = site.and_then(|site| site.address.map(|address| (site, address)));
        match used {
            Some((site, address)) if site.touch == Touch::Walk => format!("walk for {address:#x}"),
            Some((_, address)) => {
                let name = self.symbols.and_then(|names| names.data(address, &self.processors));
                name.unwrap_or_else(|| format!("{address:#x}"))
            }
            None => self.page(page).unwrap_or_default(),
        }
    }

    /// What lies in a page.
    pub(super) fn page(&self, page: &PageTrace) -> Option<String> {
        self.symbols.and_then(|symbols| symbols.page(page.gfn, &self.processors))
    }

    /// Why the names may be wrong.
    pub(super) fn doubt(&self) -> Option<String> {
        let symbols = self.symbols?;
        let sites = self.answers.iter().flat_map(|answer| &answer.pages);
        let kernel: Vec<_> = sites
            .flat_map(|page| &page.sites)
            .filter(|site| !site.user && site.rip >= UPPER_HALF)
            .collect();
        let strange = kernel.iter().filter(|site| !symbols.is_code(site.rip)).count();
        (strange * 2 > kernel.len()).then(|| {
            format!(
                "the symbols do not fit: {strange} of {} places of the kernel are not in its code; \
                 are they of this kernel, and does it run with nokaslr?",
                kernel.len()
            )
        })
    }

    /// The answers as JSON, a line each, with names where they are known.
    pub(super) fn json(&self) -> Result<String> {
        let mut text = String::new();
        for answer in self.answers {
            let mut value = serde_json::to_value(answer)?;
            let pages = value["pages"].as_array_mut().into_iter().flatten();
            for (page, told) in answer.pages.iter().zip(pages) {
                told["names"] = json!(self.page(page));
                let sites = told["sites"].as_array_mut().into_iter().flatten();
                for (site, told) in page.sites.iter().zip(sites) {
                    told["code"] = Value::String(self.code(site));
                    told["data"] = Value::String(self.data(page, Some(site)));
                }
            }
            text.push_str(&value.to_string());
            text.push('\n');
        }
        Ok(text)
    }
}

/// A kind of pages in a word.
pub(super) fn class(class: PageClass) -> &'static str {
    match class {
        PageClass::KernelPageTable => "kernel table",
        PageClass::UserPageTable => "user table",
        PageClass::Other => "other",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::symbols::tests::symbols;
    use super::*;

    /// One slice with a page that the kernel's code writes, one of a processor, and one nobody sampled.
    pub(crate) fn answer() -> TraceAnswer {
        let site = Site {
            rip: 0xffff_ffff_8100_0234,
            touch: Touch::Data,
            address: Some(0xffff_ffff_8200_0048),
            gs: 0xffff_8880_1f40_0000,
            vcpu: 1,
            count: 3,
            ..Site::default()
        };
        let user = Site { rip: 0x40_1000, user: true, count: 1, vcpu: 1, ..Site::default() };
        let page = |gfn, read, sites: &[Site]| {
            let mut page = PageTrace::default();
            (page.gfn, page.read, page.ping_pongs, page.taken) = (gfn, read, 2, 5);
            (page.peer, page.sites) = (Some(0), sites.to_vec());
            page
        };
        let pages =
            vec![page(0x2000, 35, &[site, user]), page(0x1f402, 7, &[]), page(0x9999, 1, &[])];
        TraceAnswer {
            slice: 1,
            on: true,
            seconds: 2.0,
            faults: 43,
            pages,
            ..TraceAnswer::default()
        }
    }

    #[test]
    fn sites_and_pages_have_names() {
        let (answers, symbols) = ([answer()], symbols());
        let named = Named::new(&answers, Some(&symbols));
        let pages = &answers[0].pages;
        let site = Named::main_site(&pages[0]).unwrap();
        assert_eq!(named.code(site), "try_to_wake_up");
        assert_eq!(named.data(&pages[0], Some(site)), "tick_lock+0x8");
        assert_eq!(named.code(&pages[0].sites[1]), "user 0x401000");
        assert_eq!(named.data(&pages[1], None), "runqueues of vCPU 1");
        assert_eq!(named.data(&pages[2], None), "");
        assert_eq!(named.doubt(), None);

        let plain = Named::new(&answers, None);
        assert_eq!(plain.code(site), "0xffffffff81000234");
        assert_eq!(plain.data(&pages[0], Some(site)), "0xffffffff82000048");
    }

    #[test]
    fn kernel_elsewhere_is_doubted() {
        let mut answers = [answer()];
        answers[0].pages[0].sites[0].rip = 0xffff_ffff_9a00_0000;
        let symbols = symbols();
        let doubt = Named::new(&answers, Some(&symbols)).doubt().unwrap();
        assert!(doubt.contains("1 of 1") && doubt.contains("nokaslr"), "{doubt}");
    }

    #[test]
    fn json_has_the_answer_and_names() {
        let (answers, symbols) = ([answer(), answer()], symbols());
        let text = Named::new(&answers, Some(&symbols)).json().unwrap();
        assert_eq!(text.lines().count(), 2);
        let line: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(line["pages"][0]["sites"][0]["code"], "try_to_wake_up");
        assert_eq!(line["pages"][0]["sites"][0]["data"], "tick_lock+0x8");
        assert_eq!(line["pages"][1]["names"], "runqueues of vCPU 1");
        assert_eq!((&line["slice"], &line["pages"][0]["read"]), (&json!(1), &json!(35)));
    }
}
