//! The pages of larder in a real Chromium, at 360, 800 and 1600 pixels, light and dark. `tests/page/run` installs what it
//! needs and runs this. Each check prints a line; the first that fails ends the run.
#![expect(clippy::disallowed_methods, reason = "the limits on calls are for the modules of larder itself")]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this program prints what it checked")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

#[path = "../it/support/mod.rs"]
#[expect(dead_code, reason = "the behaviour tests use the rest of it")]
mod support;

mod browser;
mod scenes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;

use self::browser::{Browser, Tab};
use self::scenes::Scene;
use self::support::command_setup::CommandSetup;
use self::support::eventually;
use self::support::http::get;
use self::support::larder::Larder;
use self::support::ports::free_port;
use self::support::upstream::{FakeUpstream, Provider, Target};
use self::support::warm_fixture::WarmFixture;

/// Widths and heights of a phone, a small window and a wide screen.
const SIZES: [(&str, u32, u32); 3] = [("phone", 360, 780), ("window", 800, 900), ("wide", 1600, 1000)];
const SCHEMES: [&str; 2] = ["light", "dark"];

struct Tools {
    browser: Browser,
    axe: String,
    pictures: PathBuf,
    docs: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    let [Some(program), Some(axe)] = ["LARDER_CHROMIUM", "LARDER_AXE"].map(std::env::var_os) else {
        eprintln!("run tests/page/run: it installs Chromium and axe-core, and says where they are");
        return ExitCode::from(2);
    };
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/page");
    std::fs::create_dir_all(&pictures).unwrap();
    let docs = std::env::args().any(|argument| argument == "--pictures");
    let tools = Tools {
        browser: Browser::start(Path::new(&program)),
        axe: std::fs::read_to_string(axe).unwrap(),
        pictures,
        docs: docs.then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")),
    };
    the_rules_find_a_fault(&tools).await;
    the_overview_holds_its_text(&tools).await;
    appearance_of_a_new_larder(&tools).await;
    appearance_of_a_busy_larder(&tools).await;
    appearance_of_a_sealed_larder(&tools).await;
    pictures_of_an_evening(&tools).await;
    versions_are_approved_on_the_page(&tools).await;
    appearance_of_the_home_page(&tools).await;
    a_job_changes_on_the_page(&tools).await;
    a_refused_version_is_accepted_on_the_page(&tools).await;
    the_page_works_without_scripts(&tools).await;
    the_page_works_with_the_keyboard(&tools).await;
    what_is_being_typed_stays(&tools).await;
    a_larder_that_stops_is_noticed(&tools).await;
    the_page_works_with_a_password(&tools).await;
    the_configuration_is_copied(&tools).await;
    println!("everything holds; the pictures are in {}", tools.pictures.display());
    ExitCode::SUCCESS
}

impl Tools {
    /// Checks a page at every size and scheme, and takes a picture of each.
    async fn check_appearance(&self, name: &str, url: &str) {
        let tab = self.browser.tab().await;
        for (size, width, height) in SIZES {
            for scheme in SCHEMES {
                tab.resize(width, height, scheme).await;
                tab.open(url).await;
                let overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
                assert_eq!(tab.value(overflow).await, json!(0), "{name} at {width}: it can be scrolled sideways");
                let violations = tab.violations(&self.axe).await;
                assert!(violations.is_empty(), "{name} at {width}, {scheme}: {violations:#?}");
                tab.picture(&self.pictures.join(format!("{name}-{size}-{scheme}.png")), 6000).await;
            }
        }
        assert_quiet(&tab, url);
        println!("{name}: nothing to scroll sideways, no violation of the accessibility rules, no complaint");
    }

    /// Takes a picture for the documents, from the top of an element.
    async fn picture_for_docs(&self, url: &str, file: &str, (width, height): (u32, u32), scheme: &str, from: &str) {
        let Some(docs) = &self.docs else { return };
        let tab = self.browser.tab().await;
        tab.resize(width, height, scheme).await;
        tab.open(url).await;
        // The folder of this run is nothing to read about.
        tab.value("document.querySelector('#token-hint code').textContent = '/var/lib/larder/admin-token'").await;
        tab.picture_from(&docs.join(file), from, height, if width < 500 { 1.0 } else { 0.8 }).await;
    }
}

/// Asserts that a page has caused no error, no dialog, and no request to another origin.
fn assert_quiet(tab: &Tab, url: &str) {
    let origin = url.split('/').take(3).collect::<Vec<_>>().join("/");
    let complaints = tab.complaints(&origin);
    assert!(complaints.is_empty(), "{url}: {complaints:#?}");
}

fn status_url(larder: &Larder) -> String {
    format!("{}/", larder.admin())
}

/// A page with faults is found out, so that silence means something.
async fn the_rules_find_a_fault(tools: &Tools) {
    let tab = tools.browser.tab().await;
    tab.open("data:text/html,<title>x</title><img src='data:,'><script>console.error(1)</script>").await;
    let violations = tab.violations(&tools.axe).await;
    assert!(violations.iter().any(|violation| violation.starts_with("image-alt")), "{violations:#?}");
    assert!(!tab.complaints("http://127.0.0.1").is_empty());
}

/// Viewers draw the first picture of the README with the fonts that they have: the text stays in its boxes, and labels beside them.
async fn the_overview_holds_its_text(tools: &Tools) {
    const OUTSIDE: &str = r#"
        [...document.querySelectorAll('text')].flatMap(text => {
            const place = text.getBBox(), boxes = [...document.querySelectorAll('.box')].map(box => box.getBBox());
            const inside = box => place.x >= box.x + 6 && place.x + place.width <= box.x + box.width - 6
                && place.y >= box.y && place.y + place.height <= box.y + box.height;
            const apart = box => place.x > box.x + box.width || place.x + place.width < box.x
                || place.y > box.y + box.height || place.y + place.height < box.y;
            return boxes.some(inside) || boxes.every(apart) ? [] : [text.textContent];
        })"#;
    let url = format!("file://{}/docs/overview.svg", env!("CARGO_MANIFEST_DIR"));
    let tab = tools.browser.tab().await;
    let mut widths = std::collections::BTreeSet::new();
    for family in ["DejaVu Sans", "Liberation Sans", "Noto Sans"] {
        for scheme in SCHEMES {
            tab.resize(1000, 340, scheme).await;
            tab.open(&url).await;
            tab.value(&format!("document.documentElement.setAttribute('font-family', '{family}')")).await;
            assert_eq!(tab.value(OUTSIDE).await, json!([]), "{family}");
            let file = format!("overview-{}-{scheme}.png", family.replace(' ', "-"));
            tab.picture_from(&tools.pictures.join(file), "svg", 340, 1.0).await;
        }
        widths.insert(
            tab.value("Math.round(100 * document.querySelectorAll('text')[4].getBBox().width)").await.to_string(),
        );
    }
    assert_eq!(widths.len(), 3, "a font is missing here, and another one was measured: {widths:?}");
    tab.value("document.documentElement.setAttribute('font-size', '22')").await;
    assert_ne!(tab.value(OUTSIDE).await, json!([]), "the check finds a text that runs over its box");
    println!("overview: the text stays in its boxes in three fonts");
}

async fn appearance_of_a_new_larder(tools: &Tools) {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    tools.check_appearance("new", &status_url(&larder)).await;
    let tab = tools.browser.tab().await;
    tab.open(&status_url(&larder)).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("Ready"));
}

async fn appearance_of_a_busy_larder(tools: &Tools) {
    let scene = Scene::busy().await;
    let url = status_url(&scene.larder);
    tools.check_appearance("busy", &url).await;
    let tab = tools.browser.tab().await;
    tab.open(&url).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("2 versions wait for your decision"));
    for (selector, expected) in [
        ("#tiles", "Stored"),
        ("#alarms-section", "larder accept"),
        ("#refusals-section", "ask #platform <b>to add it</b>"),
        ("#traffic-section", "Last day"),
        ("#jobs-section", "running"),
        ("#upstreams-section", "left alone"),
        ("#content-section", "hashicorp/aws"),
        ("#store-section", "First-seen records"),
    ] {
        let text = tab.text(selector).await.unwrap_or_else(|| panic!("{selector}"));
        assert!(text.contains(expected), "{selector}: {text}");
    }
    // Text of upstreams does nothing.
    assert_eq!(tab.value("document.querySelectorAll('img, iframe, object').length").await, json!(0));
    assert_quiet(&tab, &url);
}

/// The pictures of the documents: what the page showed after an evening of real installs.
async fn pictures_of_an_evening(tools: &Tools) {
    let Some(scene) = Scene::evening().await else {
        println!("terraform is missing: no pictures of an evening");
        return;
    };
    let url = status_url(&scene.larder);
    tools.check_appearance("evening", &url).await;
    tools.picture_for_docs(&url, "status-page.png", (1000, 1260), "light", "html").await;
    tools.picture_for_docs(&url, "status-page-dark.png", (1000, 1000), "dark", "#traffic-section").await;
    tools.picture_for_docs(&url, "status-page-phone.png", (360, 1000), "light", "html").await;
}

async fn appearance_of_a_sealed_larder(tools: &Tools) {
    let scene = Scene::sealed().await;
    tools.check_appearance("sealed", &status_url(&scene.larder)).await;
}

/// What is held back can be approved without scripts, and the browser keeps what was typed until the token is given.
async fn versions_are_approved_on_the_page(tools: &Tools) {
    let scene = Scene::with_quarantine().await;
    let url = format!("{}held", status_url(&scene.larder));
    tools.check_appearance("held", &url).await;
    let tab = tools.browser.tab().await;
    tab.disable_scripts().await;
    tab.open(&url).await;
    tab.click("input[value='hashicorp/google@7.1.0']").await;
    tab.click("#reason").await;
    tab.type_text("needed for the launch").await;
    tab.click("button[value='approve']").await;
    assert_eq!(tab.value("document.activeElement.id").await, json!("token"));
    tab.type_text(&scene.larder.token()).await;
    tab.leave_by(async || tab.click("button[value='approve']").await).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("Approved"));
    tab.leave_by(async || tab.click("main a").await).await;
    assert!(tab.text("main").await.unwrap().contains("needed for the launch"));
    println!("versions that are held back are approved without scripts");
}

async fn appearance_of_the_home_page(tools: &Tools) {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    tools.check_appearance("home", &format!("{}/", larder.base())).await;
}

/// A job moves on the page by its events, and ends there, without a reload.
async fn a_job_changes_on_the_page(tools: &Tools) {
    let upstream = FakeUpstream::start().await;
    for version in ["1.0.0", "1.1.0", "1.2.0"] {
        upstream.publish(Provider::new("acme", "null").version(version).size(300_000));
    }
    upstream.publish(Provider::new("acme", "slow").size(3_000_000));
    let larder = Larder::mirroring(&upstream).start().await;
    let fixture = WarmFixture::for_larder(&larder);
    let gate = upstream.hold_after(Target::Archive.with_path_part("slow"), 1_000_000);
    let what: Vec<String> =
        ["null@1.0.0", "null@1.1.0", "null@1.2.0", "slow@1.2.0"].map(|name| format!("acme/{name}")).into();
    let job = fixture.start_job(&json!({ "what": what, "platforms": ["linux_amd64"] })).await;
    let tab = tools.browser.tab().await;
    tab.open(&status_url(&larder)).await;
    tab.value("window.sameDocument = true").await;
    tab.wait_for_text("[data-job] [data-counts]", "3 of 4, 3 fetched").await;
    assert_eq!(tab.value("document.querySelector('[data-job] progress').value").await, json!(3));
    gate.open();
    fixture.finished_job(&job).await;
    tab.wait_for_text("#jobs-section .badge", "done").await;
    tab.wait_for_text("#announce", "done").await;
    assert_eq!(tab.value("document.querySelectorAll('[data-job]').length").await, json!(0));
    assert_eq!(tab.value("window.sameDocument").await, json!(true));
    // The figures changed with it.
    tab.wait_for_text("#tiles", "4 archives").await;
    assert_quiet(&tab, &status_url(&larder));
    println!("a job changes on the page while it runs");
}

/// A person finds out from the page alone why a version is refused, and resolves it.
async fn a_refused_version_is_accepted_on_the_page(tools: &Tools) {
    let scene = Scene::refused().await;
    let (url, token) = (status_url(&scene.larder), scene.larder.token());
    let tab = tools.browser.tab().await;
    tab.open(&url).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("A version waits for your decision"));
    // Without a token the browser itself refuses to send the form.
    tab.click("button[value^='accept:']").await;
    assert_eq!(tab.value("document.activeElement.id").await, json!("token"));
    tab.type_text("not the token").await;
    tab.leave_by(async || tab.click("button[value^='accept:']").await).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("That is not the admin token"));
    assert_eq!(scene.larder.alarms().await.len(), 1);
    tab.leave_by(async || tab.click("main a").await).await;
    tab.click("#token").await;
    tab.type_text(&token).await;
    tab.leave_by(async || tab.click("button[value^='accept:']").await).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("Accepted"));
    let violations = tab.violations(&tools.axe).await;
    assert!(violations.is_empty(), "{violations:#?}");
    tab.picture(&tools.pictures.join("accepted.png"), 2000).await;
    tab.leave_by(async || tab.click("main a").await).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("All is well"));
    assert_eq!(scene.larder.alarms().await.len(), 0);
    // The refusal of the wrong token is a 403, which the browser notes.
    let complaints = tab.complaints(url.trim_end_matches('/'));
    let unexpected: Vec<_> = complaints.iter().filter(|complaint| !complaint.contains("status of 403")).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    println!("a refused version is explained and accepted");
}

async fn the_page_works_without_scripts(tools: &Tools) {
    let scene = Scene::refused().await;
    let (url, token) = (status_url(&scene.larder), scene.larder.token());
    let tab = tools.browser.tab().await;
    tab.disable_scripts().await;
    tab.open(&url).await;
    tab.leave_by(async || tab.click("header a").await).await;
    tab.click("#token").await;
    tab.type_text(&token).await;
    tab.leave_by(async || tab.click("button[value^='accept:']").await).await;
    assert_eq!(tab.text("h1").await.as_deref(), Some("Accepted"));
    tab.open(&format!("{}/", scene.larder.base())).await;
    assert_eq!(tab.value("document.querySelector('[data-copy]').hidden").await, json!(true));
    assert!(tab.text("#config").await.unwrap().contains("host \"registry.terraform.io\""));
    println!("the pages work without scripts");
}

/// Everything can be reached and pressed with the keyboard, and it can be seen where one is.
async fn the_page_works_with_the_keyboard(tools: &Tools) {
    let scene = Scene::refused().await;
    let (url, token) = (status_url(&scene.larder), scene.larder.token());
    let tab = tools.browser.tab().await;
    tab.open(&url).await;
    tab.press("Tab").await;
    assert_eq!(tab.value("document.activeElement.className").await, json!("skip"));
    let mut reached = Vec::new();
    for _ in 0..12 {
        let outline = tab.value("getComputedStyle(document.activeElement).outlineStyle").await;
        assert_ne!(outline, json!("none"), "the focus cannot be seen after {reached:?}");
        tab.press("Tab").await;
        let element = tab
            .value("document.activeElement.id || document.activeElement.value || document.activeElement.innerText")
            .await;
        reached.push(element.as_str().unwrap_or_default().to_owned());
        if reached.last().is_some_and(|element| element == "token") {
            tab.type_text(&token).await;
            // It decides nothing: the person has not chosen yet.
            tab.press("Enter").await;
            assert_eq!(tab.text("h1").await.as_deref(), Some("A version waits for your decision"));
        }
        if reached.last().is_some_and(|element| element.starts_with("accept:")) {
            tab.leave_by(async || tab.press("Enter").await).await;
            assert_eq!(tab.text("h1").await.as_deref(), Some("Accepted"));
            println!("the page works with the keyboard");
            return;
        }
    }
    panic!("the button cannot be reached: {reached:?}");
}

/// A refresh of the figures leaves what a person types, and what it opened.
async fn what_is_being_typed_stays(tools: &Tools) {
    let scene = Scene::refused().await;
    let url = status_url(&scene.larder);
    let tab = tools.browser.tab().await;
    tab.open(&url).await;
    tab.click("#last-day-table summary").await;
    tab.value("document.activeElement.blur()").await;
    tab.click("#token").await;
    tab.type_text("half a tok").await;
    tab.value("window.marked = document.getElementById('tiles')").await;
    tab.value("document.dispatchEvent(new Event('visibilitychange'))").await;
    eventually("the figures are refreshed", async || {
        (tab.value("document.getElementById('tiles') !== window.marked").await == json!(true)).then_some(())
    })
    .await;
    assert_eq!(tab.value("document.getElementById('token').value").await, json!("half a tok"));
    assert_eq!(tab.value("document.getElementById('last-day-table').open").await, json!(true));
    assert_eq!(tab.value("document.querySelectorAll('main > section').length").await, json!(6));
    assert_quiet(&tab, &url);
    println!("a refresh leaves what is being typed");
}

async fn a_larder_that_stops_is_noticed(tools: &Tools) {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let tab = tools.browser.tab().await;
    tab.open(&status_url(&larder)).await;
    larder.stop().await;
    tab.value("document.dispatchEvent(new Event('visibilitychange'))").await;
    tab.wait_for_text("#announce", "larder does not answer").await;
    println!("a larder that stops is noticed");
}

/// Off loopback the browser asks for the token, and the page is live with it.
async fn the_page_works_with_a_password(tools: &Tools) {
    let upstream = FakeUpstream::start().await;
    upstream.publish(Provider::new("acme", "slow").size(3_000_000));
    let setup = CommandSetup::with_admin(&upstream, &format!("listen = \"0.0.0.0:{}\"", free_port()));
    let larder = setup.serve();
    let token = std::fs::read_to_string(setup.home.path().join("admin-token")).unwrap();
    let admin = larder.admin().replace("0.0.0.0", "127.0.0.1");
    get(&format!("{admin}/")).await.expect(401);
    let gate = upstream.hold_after(Target::Archive, 1_000_000);
    let warm = setup.run(&["warm", "acme/slow@1.2.0", "--platform", "linux_amd64", "--json"]);
    let page = async {
        upstream.wait_for(Target::Archive, 1).await;
        let tab = tools.browser.tab().await;
        tab.sign_in(&format!("{admin}/"), "any", &token).await;
        tab.wait_for_text("[data-job] [data-counts]", "0 of 1").await;
        gate.open();
        tab.wait_for_text("#jobs-section .badge", "done").await;
        tab
    };
    let (_, tab) = tokio::join!(warm, page);
    let complaints = tab.complaints(&admin);
    let unexpected: Vec<_> = complaints.iter().filter(|complaint| !complaint.contains("status of 401")).collect();
    assert!(unexpected.is_empty(), "{unexpected:#?}");
    println!("off loopback the browser asks for the token, and the page is live");
}

async fn the_configuration_is_copied(tools: &Tools) {
    let upstream = FakeUpstream::start().await;
    let larder = Larder::mirroring(&upstream).start().await;
    let tab = tools.browser.tab().await;
    tab.open(&format!("{}/", larder.base())).await;
    tab.call("Page.bringToFront", json!({})).await;
    tab.click("[data-copy]").await;
    tab.wait_for_text("[data-copied]", "Copied").await;
    assert_eq!(tab.value("navigator.clipboard.readText()").await, json!(larder.client_config()));
    assert_quiet(&tab, larder.base());
    println!("the configuration is copied");
}
