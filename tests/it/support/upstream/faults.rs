//! Faults of a registry by name, and the answers they apply to. `reply` applies them.

use std::time::Duration;

use http::Method;

use super::reply::Gate;

/// The answers that a fault applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// `/.well-known/terraform.json`.
    Discovery,
    /// The version list of any provider.
    Versions,
    /// The download document of any platform.
    Document,
    /// SHA256SUMS.
    Sums,
    /// The signature over SHA256SUMS.
    Signature,
    /// Any zip.
    Archive,
    /// The version list of any module.
    ModuleVersions,
    /// The location of any version of a module.
    Location,
    /// Paths below `/files/`: module archives.
    ModuleArchive,
    /// Any request to a git repository.
    Git,
    /// Content added with `serve`, the hops of redirected file URLs, and what does not exist.
    Other,
    /// Any request whose path contains this text.
    Path(String),
    /// The requests of another target whose path contains this text.
    WithPathPart(Box<Target>, String),
    /// Every request.
    Everything,
}

impl Target {
    pub(super) fn covers(&self, target_of_request: &Self, path: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Path(part) => path.contains(part.as_str()),
            Self::WithPathPart(target, part) => target.covers(target_of_request, path) && path.contains(part.as_str()),
            target => target == target_of_request,
        }
    }

    /// The requests of this target whose path contains this text, such as those of one provider.
    pub(crate) fn with_path_part(&self, part: &str) -> Self {
        Self::WithPathPart(Box::new(self.clone()), part.to_owned())
    }
}

/// A way in which answers go wrong.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    // Faults of the content; length and framing are right.
    /// One byte in the middle is wrong.
    WrongBytes,
    /// The very last byte is wrong.
    WrongLastByte,
    /// The very first byte is one that no text begins with: for answers whose middle differs from one server to
    /// another.
    WrongFirstByte,
    /// The first object of a git pack is wrong, wherever the server puts its progress lines; an answer without a pack
    /// is intact.
    WrongPack,
    /// A friendly HTML page with status 200.
    Html,
    /// JSON that ends in the middle.
    InvalidJson,
    /// 64 MiB of valid JSON around the true content.
    HugeJson,
    /// A hundred thousand nested arrays.
    DeepJson,
    /// Another content type.
    ContentType(&'static str),
    /// A `Date` header that is off by this many seconds.
    ClockOff(i64),
    /// No ETag, no Last-Modified.
    NoValidators,
    /// A header of 1 MiB.
    HugeHeader,
    /// gzip that unpacks to 256 MiB of JSON, whatever the request accepts.
    GzipBomb,
    /// gzip that unpacks without end.
    GzipWithoutEnd,
    /// gzip that continues without end and unpacks to nothing.
    GzipOfNothing,
    /// Zeros without end and without a length.
    Endless,

    // Faults of the proof set. They change the document, SHA256SUMS or signature that they name, whatever the target.
    // `fault_once` ends them with the first answer that the target covers.
    /// SHA256SUMS, rightly signed, does not name the zip.
    ArchiveNotInSums,
    /// SHA256SUMS was changed after it was signed.
    SumsChangedAfterSigning,
    /// The signature is by a key that the document does not list.
    SignedByAnotherKey,
    /// The document lists no key.
    NoKeys,
    /// The document's key cannot be parsed.
    UnparsableKey,
    /// The document's `shasum` is of something else.
    WrongShasum,
    /// After publishing again: the document and the zip are new, sums and signature still old.
    OldSums,

    // Faults of the status.
    /// This status, with a short body.
    Status(u16),
    /// This status, with `Retry-After: SECONDS`.
    RetryAfter(u16, u64),
    /// This status, with this JSON body.
    StatusBody(u16, &'static str),
    /// One redirect with this status to the same path with `?hop=1`, which serves the content.
    Redirect(u16),
    /// Redirects with this status that never end.
    RedirectLoop(u16),
    /// A redirect with this status to this URL.
    RedirectTo(u16, String),

    // Faults of ranges.
    /// 200 and the whole body in place of the range, without Accept-Ranges.
    RangeIgnored,
    /// 200 to a Range request, and every byte differs from the earlier answer.
    RangeOtherBytes,

    // Faults of the connection.
    /// Content-Length is right, but the connection closes after this many bytes of the body.
    Truncated(usize),
    /// The connection is reset (RST) after this many bytes of the body; the last of them may be lost with it.
    Reset(usize),
    /// Content-Length and Content-Range announce this many bytes, whatever size the body has.
    Announces(usize),
    /// No Content-Length: chunked, and complete.
    NoLength,
    /// No Content-Length, and the connection is closed after this many bytes, without a last chunk.
    NoLengthTruncated(usize),
    /// The answer begins this much later.
    Late(Duration),
    /// No answer at all: the connection stays open.
    NeverAnswers,
    /// Nothing more after this many bytes of the body: the connection stays open.
    Stalls(usize),
    /// This many bytes of the body at a time, with a pause between.
    Drips(usize, Duration),
}

/// An active fault.
struct Rule {
    target: Target,
    fault: Fault,
    is_once: bool,
}

/// A gate in front of answers.
struct Hold {
    target: Target,
    point: HoldPoint,
    gate: Gate,
}

/// The point at which an answer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldPoint {
    BeforeHeaders,
    AfterBodyBytes(usize),
}

/// All active faults and gates.
#[derive(Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    holds: Vec<Hold>,
}

/// The faults and gates for one request.
pub(super) struct ActiveFaults {
    /// All faults, whatever their target.
    pub(super) all: Vec<Fault>,
    /// The faults whose target covers this request.
    pub(super) matching: Vec<Fault>,
    /// The gates at which the answer waits.
    pub(super) holds: Vec<(HoldPoint, Gate)>,
}

impl Rules {
    pub(super) fn add(&mut self, target: Target, fault: Fault, is_once: bool) {
        self.rules.push(Rule { target, fault, is_once });
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(super) fn hold(&mut self, target: Target, point: HoldPoint) -> Gate {
        let gate = Gate::closed();
        self.holds.push(Hold { target, point, gate: gate.clone() });
        gate
    }

    /// The faults for a request. Removes those that happen once, unless the request is a HEAD: some clients send one
    /// before a download.
    pub(super) fn take_matching(&mut self, target: &Target, path: &str, method: &Method) -> ActiveFaults {
        let all = self.rules.iter().map(|rule| rule.fault.clone()).collect();
        let matching: Vec<&Rule> = self.rules.iter().filter(|rule| rule.target.covers(target, path)).collect();
        let matching = matching.iter().map(|rule| rule.fault.clone()).collect();
        self.rules.retain(|rule| !(rule.is_once && method != Method::HEAD && rule.target.covers(target, path)));
        self.holds.retain(|hold| !hold.gate.is_open());
        let holds = self.holds.iter().filter(|hold| hold.target.covers(target, path));
        let holds = holds.map(|hold| (hold.point, hold.gate.clone())).collect();
        ActiveFaults { all, matching, holds }
    }
}
