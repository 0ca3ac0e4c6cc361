//! Which responses leave open what became of their requests.

use super::*;
use crate::http1::Response;

fn response(status: u16, version: Version, header: Option<(&str, &str)>) -> ResponseHead {
    let status = StatusCode::from_u16(status).expect("a status");
    let mut head = Response::new(status, ()).head;
    head.version = version;
    if let Some((name, value)) = header {
        head.fields.append(name, value);
    }
    head
}

#[test]
fn what_leaves_the_outcome_open() {
    let unknown = unknown(&[1, 4, 14]);
    let of = |writes, head| Asked {
        head,
        writes,
        grpc: false,
    };
    let (put, get, head) = (of(true, false), of(false, false), of(true, true));
    let sized = Some(("content-length", "0"));
    let chunked = Some(("transfer-encoding", "chunked"));
    for (asked, status, version, header, expected) in [
        (put, 200, Version::HTTP_11, sized, None),
        (put, 200, Version::HTTP_11, chunked, None),
        (put, 200, Version::HTTP_11, None, Some(Doubt::NoLength)),
        (put, 500, Version::HTTP_10, None, Some(Doubt::NoLength)),
        (put, 204, Version::HTTP_11, None, None),
        (put, 304, Version::HTTP_11, None, None),
        (put, 200, Version::HTTP_2, None, None),
        (get, 200, Version::HTTP_11, None, None),
        (head, 200, Version::HTTP_11, None, None),
        (put, 502, Version::HTTP_11, sized, Some(Doubt::Status(502))),
        (put, 504, Version::HTTP_2, None, Some(Doubt::Status(504))),
        (get, 504, Version::HTTP_11, sized, Some(Doubt::Status(504))),
        (put, 503, Version::HTTP_11, sized, None),
    ] {
        let response = response(status, version, header);
        let conclusion = Conclusion::of(asked, &unknown, &response);
        assert_eq!(conclusion.doubt(), expected, "{status} {header:?}");
    }
}

const GRPC: &str = "application/grpc+proto";

/// With these `upstream.unknown_grpc_statuses`.
fn unknown(grpc: &[u16]) -> UnknownStatuses {
    UnknownStatuses {
        http: [502, 504].into(),
        grpc: grpc.into(),
    }
}

/// A request that can change something, as a gRPC call.
const CALL: Asked = Asked {
    head: false,
    writes: true,
    grpc: true,
};

fn head(code: u16, content: &str, status: &[&str]) -> ResponseHead {
    let mut parts = response(code, Version::HTTP_2, Some(("content-type", content)));
    for status in status {
        parts.fields.append(GRPC_STATUS, status);
    }
    parts
}

#[test]
fn what_a_grpc_status_leaves_open() {
    let some = unknown(&[1, 4, 14]);
    let usual = |head: &ResponseHead| Conclusion::of(CALL, &some, head);
    for (status, expected) in [
        (&["14"][..], Some(Doubt::Grpc(14))),
        (&["4"], Some(Doubt::Grpc(4))),
        (&["0"], None),
        (&["2"], None),
        (&["0", "14"], Some(Doubt::Grpc(14))),
        (&["x"], Some(Doubt::NoGrpcStatus)),
        (&[""], Some(Doubt::NoGrpcStatus)),
        (&["99999"], Some(Doubt::NoGrpcStatus)),
    ] {
        for (code, content) in [
            (200, GRPC),
            (200, "text/html"),
            (204, ""),
            (503, "text/html"),
        ] {
            let parts = head(code, content, status);
            let conclusion = usual(&parts);
            assert_eq!(conclusion.head, expected, "{code} {status:?}");
            assert_eq!(conclusion.doubt(), expected, "{code} {status:?}");
            let deaf = Conclusion::of(CALL, &unknown(&[]), &parts);
            assert_eq!(deaf.doubt(), None);
        }
        let trailers = head(200, GRPC, status).fields.to_map();
        let mut later = usual(&head(200, GRPC, &[]));
        assert_eq!(later.head, None);
        assert_eq!(later.doubt(), Some(Doubt::NoGrpcStatus));
        later.read(&trailers);
        assert_eq!(later.doubt(), expected, "{status:?}");

        // If both tell, neither leaves anything open.
        let mut both = usual(&head(200, GRPC, &["0"]));
        both.read(&HeaderMap::new());
        assert_eq!(both.doubt(), None);
        both.read(&trailers);
        assert_eq!(both.doubt(), expected, "{status:?}");
    }
}

#[test]
fn which_responses_are_judged_by_their_trailers() {
    let some = unknown(&[1, 4, 14]);
    let usual = |head: &ResponseHead| Conclusion::of(CALL, &some, head);
    for (code, content, awaited) in [
        (200, "text/html", true),
        (204, "", true),
        (404, "text/html", false),
        (503, GRPC, false),
    ] {
        let parts = head(code, content, &[]);
        assert_eq!(usual(&parts).doubt().is_some(), awaited, "{code} {content}");
        let web = Asked {
            grpc: false,
            ..CALL
        };
        let web = Conclusion::of(web, &some, &parts);
        assert_eq!(web.doubt(), None, "{code} {content}");
    }
    let deaf = Conclusion::of(CALL, &unknown(&[]), &head(200, GRPC, &[]));
    assert_eq!(deaf.doubt(), None);
    for (content, expected) in [
        ("application/grpc", true),
        ("Application/gRPC; x=1", true),
        ("application/grpc+json", true),
        ("application/grpc-web+proto", false),
        ("application/grp", false),
        ("application/json", false),
    ] {
        assert_eq!(
            is_grpc(&head(200, content, &[]).fields),
            expected,
            "{content}"
        );
    }
    let behind = Some(("x-fencing-outcome", "outcome-unknown"));
    let behind = response(200, Version::HTTP_2, behind);
    assert_eq!(usual(&behind).doubt(), Some(Doubt::Fencepost));
}
