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
    /// Where any version of a module is.
    Location,
    /// Paths below `/files/`: module archives.
    ModuleArchive,
    /// Anything that git asks.
    Git,
    /// Pages added with `serve`, the hops of redirected file URLs, and what does not exist.
    Other,
    /// Any request whose path contains this text.
    Path(String),
    /// Of another target, the requests whose path contains this text.
    Of(Box<Target>, String),
    /// All of them.
    Everything,
}

impl Target {
    pub(super) fn covers(&self, kind: &Self, path: &str) -> bool {
        match self {
            Self::Everything => true,
            Self::Path(part) => path.contains(part.as_str()),
            Self::Of(target, part) => target.covers(kind, path) && path.contains(part.as_str()),
            this => this == kind,
        }
    }

    /// Only where the path contains this text too: one provider of many.
    pub(crate) fn of(&self, part: &str) -> Self {
        Self::Of(Box::new(self.clone()), part.to_owned())
    }
}

/// A fault.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    // Of the content: length and framing are right.
    /// One byte in the middle is wrong.
    WrongBytes,
    /// The very last byte is wrong.
    WrongLastByte,
    /// The very first byte is one that no text begins with: for answers whose middle differs from one server to another.
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
    /// This content type.
    ContentType(&'static str),
    /// A `Date` that is off by this many seconds: the clock is wrong, here or there.
    ClockOff(i64),
    /// No ETag, no Last-Modified.
    NoValidators,
    /// A header of 1 MiB.
    HugeHeader,
    /// gzip, whatever was accepted, that unpacks to 256 MiB of JSON.
    GzipBomb,
    /// gzip that unpacks without end.
    GzipWithoutEnd,
    /// gzip that continues without end and unpacks to nothing.
    GzipOfNothing,
    /// Zeros without end and without a length.
    Endless,

    // Of the proof set: whatever the target, these change the documents they are about. `fault_once` ends
    // them with the first answer that the target covers.
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

    // Of the status.
    /// This status, with a short body.
    Status(u16),
    /// This status, with `Retry-After: SECONDS`.
    RetryAfter(u16, u64),
    /// This status, with this JSON body.
    StatusBody(u16, &'static str),
    /// One redirect with this status to the same place (`?hop=1`), which answers.
    Redirect(u16),
    /// Redirects with this status that never end.
    RedirectLoop(u16),
    /// A redirect with this status to this URL.
    RedirectTo(u16, String),

    // Of ranges.
    /// 200 and the whole body in place of the range, without Accept-Ranges.
    RangeIgnored,
    /// 200 to a Range request, and every byte differs from before.
    RangeOtherBytes,

    // Of the wire.
    /// Content-Length is right, but the connection closes after this many bytes of the body.
    Truncated(usize),
    /// The connection is reset (RST) after this many bytes of the body; the last of them may be lost with it.
    Reset(usize),
    /// A Content-Length of this many bytes, and in the Content-Range of a part, whatever the body has.
    Announces(usize),
    /// No Content-Length: chunked, and complete.
    NoLength,
    /// No Content-Length, and the connection is closed after this many bytes, without a last chunk.
    NoLengthTruncated(usize),
    /// The answer begins this much later than it could.
    Late(Duration),
    /// No answer at all: the connection stays open.
    NeverAnswers,
    /// Nothing more after this many bytes of the body: the connection stays open.
    Stalls(usize),
    /// This many bytes of the body at a time, with a pause between.
    Drips(usize, Duration),
}

/// A fault in force.
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

/// Where an answer waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HoldPoint {
    BeforeHeaders,
    AfterBodyBytes(usize),
}

/// All faults and gates in force.
#[derive(Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    holds: Vec<Hold>,
}

/// The faults of one request.
pub(super) struct InForce {
    /// Every fault there is, whatever its target.
    pub(super) anywhere: Vec<Fault>,
    /// The faults of this answer.
    pub(super) here: Vec<Fault>,
    /// Where this answer waits.
    pub(super) holds: Vec<(HoldPoint, Gate)>,
}

impl Rules {
    pub(super) fn add(&mut self, target: Target, fault: Fault, is_once: bool) {
        self.rules.push(Rule { target, fault, is_once });
    }

    pub(super) fn heal(&mut self) {
        self.rules.clear();
    }

    pub(super) fn hold(&mut self, target: Target, point: HoldPoint) -> Gate {
        let gate = Gate::closed();
        self.holds.push(Hold { target, point, gate: gate.clone() });
        gate
    }

    /// The faults for a request of this kind; a fault that happens once is used up by it, unless the request is the
    /// HEAD that some clients send before a download.
    pub(super) fn take(&mut self, kind: &Target, path: &str, method: &Method) -> InForce {
        let anywhere = self.rules.iter().map(|rule| rule.fault.clone()).collect();
        let here: Vec<&Rule> = self.rules.iter().filter(|rule| rule.target.covers(kind, path)).collect();
        let here = here.iter().map(|rule| rule.fault.clone()).collect();
        self.rules.retain(|rule| !(rule.is_once && method != Method::HEAD && rule.target.covers(kind, path)));
        self.holds.retain(|hold| !hold.gate.is_open());
        let holds = self.holds.iter().filter(|hold| hold.target.covers(kind, path));
        let holds = holds.map(|hold| (hold.point, hold.gate.clone())).collect();
        InForce { anywhere, here, holds }
    }
}
