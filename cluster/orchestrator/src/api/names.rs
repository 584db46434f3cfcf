//! Names, ids and pages in requests.

use super::problem::invalid;
use crate::decide::Request;
use prost::Message;
use state::{Name, Uid};
use tonic::Status;

/// Entries on a page.
const PAGE_MAX: u32 = 1000;
const PAGE: u32 = 100;
/// Bytes of a page: clients take 4 MiB unless they say otherwise.
pub(crate) const PAGE_BYTES_MAX: usize = 3 << 20;

fn name(kind: &str, field: &str, text: &str) -> Result<Name, Status> {
    let bare = text.strip_prefix(kind).and_then(|rest| rest.strip_prefix('/'));
    let bare = bare.ok_or_else(|| invalid(field, &format!("it is {kind}/NAME")))?;
    Name::new(bare).map_err(|error| invalid(field, &error.to_string()))
}

/// The name in vms/NAME.
pub(crate) fn vm(field: &str, text: &str) -> Result<Name, Status> {
    name("vms", field, text)
}

/// The name in hosts/NAME.
pub(crate) fn host(field: &str, text: &str) -> Result<Name, Status> {
    name("hosts", field, text)
}

/// How many entries a page is to have.
pub(crate) fn page_size(asked: u32) -> Result<usize, Status> {
    let size = if asked == 0 { PAGE } else { asked };
    if size > PAGE_MAX {
        return Err(invalid("page_size", &format!("it is 1 to {PAGE_MAX}")));
    }
    // It is small.
    Ok(usize::try_from(size).unwrap_or(1))
}

/// The last name of the page before; none for the first page.
pub(crate) fn page_token(token: &str) -> Result<Option<Name>, Status> {
    let name = |_| invalid("page_token", "it is of no page before");
    if token.is_empty() { Ok(None) } else { Name::new(token).map(Some).map_err(name) }
}

/// What names a request, if it has an id; `content` is the request without it.
pub(crate) fn request(
    method: &str,
    id: &str,
    content: &impl Message,
) -> Result<Option<Request>, Status> {
    if id.is_empty() {
        return Ok(None);
    }
    let refused = || invalid("request_id", "it is a UUID");
    let groups: Vec<&str> = id.split('-').take(6).collect();
    if !groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) {
        return Err(refused());
    }
    let digits = groups.concat().to_ascii_lowercase();
    let id = Uid::try_from(digits).map_err(|_| refused())?;
    let mut hash = blake3::Hasher::new();
    // Its length keeps the two apart.
    hash.update(&method.len().to_le_bytes()).update(method.as_bytes());
    hash.update(&content.encode_to_vec());
    Ok(Some(Request { id, content: hash.finalize().to_hex().to_string() }))
}

/// As many entries as a page has, and the token of the next one, if there is one. `entry` makes one, and says its name.
pub(crate) fn page<T, E: Message>(
    mut all: impl Iterator<Item = T>,
    size: usize,
    entry: impl Fn(T) -> (Name, E),
) -> (Vec<E>, String) {
    let (mut entries, mut bytes, mut last) = (Vec::new(), 0, None);
    for one in all.by_ref() {
        let (name, made) = entry(one);
        bytes += made.encoded_len();
        entries.push(made);
        last = Some(name);
        if entries.len() >= size || bytes >= PAGE_BYTES_MAX {
            break;
        }
    }
    let is_more = all.next().is_some();
    let token = last.filter(|_| is_more).map_or_else(String::new, String::from);
    (entries, token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::v1::{GetClusterVmRequest, PlacedSlice};

    const ID: &str = "0123abcd-0000-1111-2222-0123456789AB";

    #[test]
    fn names_have_their_kind() {
        assert_eq!(vm("name", "vms/web-1").unwrap().as_str(), "web-1");
        assert_eq!(host("name", "hosts/a").unwrap().as_str(), "a");
        for text in ["", "web", "vms", "vms/", "vms/-", "vms/Web", "vms/a/b", "hosts/a", "vmsa"] {
            assert!(vm("name", text).is_err(), "{text}");
        }
    }

    #[test]
    fn ids_are_uuids_and_content_tells_requests_apart() {
        let content = |name: &str| GetClusterVmRequest { name: name.to_owned() };
        let of = |method: &str, name: &str| request(method, ID, &content(name)).unwrap().unwrap();
        assert_eq!(of("A", "a").id.as_str(), "0123abcd0000111122220123456789ab");
        assert_eq!(of("A", "a"), of("A", "a"));
        assert_ne!(of("A", "a").content, of("A", "b").content);
        assert_ne!(of("A", "a").content, of("B", "a").content);
        assert_eq!(request("A", "", &content("a")).unwrap(), None);
        let long = format!("{ID}-1");
        for id in ["0", "0123abcd-0000-1111-2222-0123456789ag", &long, &ID.replace('-', "")] {
            assert!(request("A", id, &content("a")).is_err(), "{id}");
        }
    }

    #[test]
    fn pages_follow_each_other_and_are_bounded() {
        let all: Vec<String> = (0..5).map(|number| format!("n{number}")).collect();
        let entry = |name: &String| (Name::new(name).unwrap(), PlacedSlice::default());
        let (entries, token) = page(all.iter(), 2, entry);
        assert_eq!((entries.len(), &token[..]), (2, "n1"));
        let after = page_token(&token).unwrap().unwrap();
        let rest = || all.iter().filter(|name| name.as_str() > after.as_str());
        assert_eq!(page(rest(), 3, entry).1, "", "there is no next one");
        let large = |name: &String| {
            (
                Name::new(name).unwrap(),
                PlacedSlice { host: "h".repeat(2 << 20), ..PlacedSlice::default() },
            )
        };
        assert_eq!(page(all.iter(), 5, large).0.len(), 2, "by bytes");
        assert!(page_size(1001).is_err() && page_size(0).unwrap() == 100);
        assert!(page_token("Not a name").is_err());
    }
}
