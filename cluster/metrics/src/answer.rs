//! What a request comes to. Pure, but for the page.

use crate::page::{Page, Written};
use http::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};

/// Where the page is.
const PATH: &str = "/metrics";

/// What is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The page, in this form.
    Page(Written),
    /// Something that is not here.
    Nothing,
    /// Something that cannot be done with it.
    Other,
}

pub(crate) fn wanted<B>(request: &Request<B>) -> Wanted {
    if request.uri().path() != PATH {
        return Wanted::Nothing;
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Wanted::Other;
    }
    let accepts = request.headers().get_all(ACCEPT);
    let open = "application/openmetrics-text";
    let is_open =
        accepts.iter().any(|it| it.to_str().is_ok_and(|it| it.to_ascii_lowercase().contains(open)));
    Wanted::Page(if is_open { Written::OpenMetrics } else { Written::Prometheus })
}

fn plain(status: StatusCode, text: &str) -> Response<String> {
    let mut response = Response::new(text.to_owned());
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Without a page.
pub(crate) fn refusal(wanted: &Wanted) -> Response<String> {
    match wanted {
        Wanted::Other => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "it can be read only\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        Wanted::Nothing | Wanted::Page(_) => {
            plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n")
        }
    }
}

/// With the page; none if nobody could tell it.
pub(crate) fn told(page: Option<&Page>, written: Written) -> Response<String> {
    let Some(page) = page else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "it takes too long to look\n");
    };
    match page.write(written) {
        Ok(text) => {
            let mut response = Response::new(text);
            let kind = HeaderValue::from_static(written.content_type());
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "it cannot be written: this is a bug\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str, accept: &str) -> Wanted {
        let request = Request::builder().method(method).uri(path).header(ACCEPT, accept);
        wanted(&request.body(()).unwrap())
    }

    #[test]
    fn form_is_that_which_the_reader_takes() {
        let newer = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert_eq!(of("GET", "/metrics", newer), Wanted::Page(Written::OpenMetrics));
        assert_eq!(of("GET", "/metrics?x=1", "*/*"), Wanted::Page(Written::Prometheus));
        assert_eq!(of("HEAD", "/metrics", ""), Wanted::Page(Written::Prometheus));
    }

    #[test]
    fn anything_else_is_refused() {
        assert_eq!(of("GET", "/", "*/*"), Wanted::Nothing);
        assert_eq!(of("GET", "/metrics/", "*/*"), Wanted::Nothing);
        assert_eq!(of("POST", "/metrics", "*/*"), Wanted::Other);
        assert_eq!(refusal(&Wanted::Other).status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(told(None, Written::Prometheus).status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
