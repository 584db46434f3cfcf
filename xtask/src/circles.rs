//! No circles of modules: which file uses which, and whether any two siblings need each other.
//!
//! ```text
//!   files of a crate --syn--> paths that each module names --re-exports--> the module that has the item
//!   for each folder: its parts as nodes, uses between them as arrows --> strongly connected parts are findings
//! ```
//! A folder counts as one part of the folder above it. A folder's own file (`mod.rs`) is its front: it may use what is
//! inside, and what is inside may use what the front defines. Tests may use whatever they like.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Item, Token, UseTree};

/// A module by its path inside its crate; the crate's root is empty.
type Module = Vec<String>;
/// Arrows from a module to those that it uses.
type Uses = BTreeMap<Module, BTreeSet<Module>>;

/// Every circle in the crates below these folders of sources.
pub(crate) fn findings(root: &Path, sources: &[PathBuf]) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for source in sources {
        let shown = source.strip_prefix(root).unwrap_or(source).display().to_string();
        let uses = uses(&read(source)?);
        for (folder, parts) in circles(&uses) {
            let place = if folder.is_empty() {
                shown.clone()
            } else {
                format!("{shown}/{}", folder.join("/"))
            };
            found.push(format!("{place}: {}: these modules need each other", parts.join(", ")));
        }
    }
    Ok(found)
}

/// What a module's text says.
#[derive(Debug, Default)]
struct Text {
    /// Paths as written, from `crate`, `self`, `super` or a name in reach.
    paths: Vec<Vec<String>>,
    /// What a name stands for here: imports and re-exports.
    names: BTreeMap<String, Vec<String>>,
}

fn read(source: &Path) -> Result<BTreeMap<Module, Text>> {
    let mut modules = BTreeMap::new();
    let mut folders = vec![source.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = module_of(source, &path);
                if module.iter().any(|part| part == "tests" || part == "bin") {
                    continue;
                }
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("read {}", path.display()))?;
                modules.insert(
                    module,
                    parse(&text).with_context(|| format!("parse {}", path.display()))?,
                );
            }
        }
    }
    Ok(modules)
}

fn module_of(source: &Path, path: &Path) -> Module {
    let inside = path.strip_prefix(source).unwrap_or(path).with_extension("");
    let mut parts: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if parts.last().is_some_and(|last| {
        last == "mod" || (parts.len() == 1 && (last == "lib" || last == "main"))
    }) {
        parts.pop();
    }
    parts
}

fn parse(text: &str) -> Result<Text> {
    let mut found = Text::default();
    found.visit_file(&syn::parse_file(text)?);
    Ok(found)
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        list.is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string() == "test")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl Visit<'_> for Text {
    fn visit_item(&mut self, item: &Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.tree(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let parts: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.paths.push(parts);
        visit::visit_path(self, path);
    }

    /// The arguments of most macros are expressions.
    fn visit_macro(&mut self, called: &syn::Macro) {
        let arguments = Punctuated::<Expr, Token![,]>::parse_terminated;
        if let Ok(arguments) = called.parse_body_with(arguments) {
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }
}

impl Text {
    fn tree(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before)),
            UseTree::Glob(_) => self.paths.push(before.to_vec()),
            UseTree::Name(name) => self.import(with(&name.ident), name.ident.to_string()),
            UseTree::Rename(name) => self.import(with(&name.ident), name.rename.to_string()),
        }
    }

    fn import(&mut self, mut path: Vec<String>, mut name: String) {
        // `use a::b::{self}` brings in `b`.
        if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
            path.pop();
            if name == "self" {
                name = path.last().cloned().unwrap_or_default();
            }
        }
        self.paths.push(path.clone());
        self.names.insert(name, path);
    }
}

fn uses(modules: &BTreeMap<Module, Text>) -> Uses {
    let mut uses = Uses::new();
    for (module, text) in modules {
        let targets = text.paths.iter().filter_map(|path| target(modules, module, path, 0));
        let others = targets.filter(|target| target != module).collect();
        uses.insert(module.clone(), others);
    }
    uses
}

/// A path of re-exports is no longer than this.
const HOPS_MAX: usize = 8;

/// The module that has what a path names, as seen from `from`.
fn target(
    modules: &BTreeMap<Module, Text>,
    from: &Module,
    path: &[String],
    hops: usize,
) -> Option<Module> {
    let full = absolute(modules, from, path)?;
    let known = (0..=full.len()).rev().find(|length| modules.contains_key(&full[..*length]))?;
    let module = full[..known].to_vec();
    let next = full.get(known).and_then(|name| modules[&module].names.get(name));
    match next {
        Some(next) if hops < HOPS_MAX => {
            Some(target(modules, &module, next, hops + 1).unwrap_or(module))
        }
        _ => Some(module),
    }
}

/// From the crate's root; `None` for what is of another crate, or a name of this file.
fn absolute(modules: &BTreeMap<Module, Text>, from: &Module, path: &[String]) -> Option<Module> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([from, rest].concat()),
        "super" => {
            let (_, above) = from.split_last()?;
            match rest.first() {
                Some(next) if next == "super" => absolute(modules, &above.to_vec(), rest),
                _ => Some([above, rest].concat()),
            }
        }
        _ => {
            let child = [from, std::slice::from_ref(first)].concat();
            modules.contains_key(&child).then(|| [from, path].concat())
        }
    }
}

/// Circles by the folder that they are in.
fn circles(uses: &Uses) -> Vec<(Module, Vec<String>)> {
    let folders: BTreeSet<Module> =
        uses.keys().filter_map(|module| Some(module.split_last()?.1.to_vec())).collect();
    folders.into_iter().flat_map(|folder| in_folder(uses, &folder)).collect()
}

fn in_folder(uses: &Uses, folder: &Module) -> Vec<(Module, Vec<String>)> {
    let part = |module: &Module| {
        let inside = module.strip_prefix(folder.as_slice())?;
        inside.first().cloned()
    };
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, targets) in uses {
        let Some(from) = part(from) else { continue };
        let entry = arrows.entry(from.clone()).or_default();
        entry.extend(targets.iter().filter_map(part).filter(|to| *to != from));
    }
    let reach: BTreeMap<_, _> =
        arrows.keys().map(|from| (from, reachable(&arrows, from))).collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (from, there) in reach.iter().filter(|(from, there)| there.contains(from.as_str())) {
        let back =
            |to: &&String| reach.get(*to).is_some_and(|from_there| from_there.contains(*from));
        circles.insert(there.iter().filter(back).cloned().collect());
    }
    circles.into_iter().map(|parts| (folder.clone(), parts)).collect()
}

/// Everything that can be come to from a part; the part itself only if it is on a circle.
fn reachable(arrows: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = arrows[from].iter().collect();
    while let Some(part) = next.pop() {
        if reached.insert(part.clone()) {
            next.extend(arrows.get(part).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(Module, Vec<String>)> {
        let module = |name: &&str| module_of(Path::new("src"), &Path::new("src").join(name));
        let texts = files.iter().map(|(name, text)| (module(name), parse(text).unwrap()));
        circles(&uses(&texts.collect()))
    }

    fn circle(folder: &[&str], parts: &[&str]) -> (Module, Vec<String>) {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        (owned(folder), owned(parts))
    }

    #[test]
    fn siblings_that_need_each_other_are_found() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; pub use a::Thing;"),
            ("a.rs", "use crate::b::f; pub struct Thing;"),
            ("b.rs", "fn f() { let _ = crate::c::g(); }"),
            ("c.rs", "fn g() { println!(\"{}\", super::a::h()); }"),
        ];
        assert_eq!(found(&files), [circle(&[], &["a", "b", "c"])]);
    }

    #[test]
    fn re_exports_lead_to_the_module_that_has_the_item() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::Thing;"),
            ("a.rs", "use crate::b::f; pub struct Thing;"),
            ("b.rs", "pub fn f(_: crate::Thing) {}"),
        ];
        assert_eq!(found(&files), [circle(&[], &["a", "b"])]);
    }

    #[test]
    fn folder_is_one_part_of_the_folder_above() {
        let files = [
            ("lib.rs", "mod a; mod room;"),
            ("a.rs", "use crate::room::Chair;"),
            ("room/mod.rs", "mod chair; mod table; pub use chair::Chair; pub struct Wood;"),
            ("room/chair.rs", "use super::Wood; pub struct Chair(Wood);"),
            ("room/table.rs", "use crate::a::leg; use super::chair::Chair;"),
        ];
        assert_eq!(found(&files), [circle(&[], &["a", "room"])]);
    }

    #[test]
    fn tests_and_other_crates_make_no_circle() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::f; use std::b::g;"),
            ("b.rs", "pub fn f() {} #[cfg(test)] mod tests { use crate::a::h; }"),
        ];
        assert_eq!(found(&files), []);
    }
}
