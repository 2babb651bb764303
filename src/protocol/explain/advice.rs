//! The verdict of an explanation, from the answers to the requests of a client, and the advice for a person.

use std::collections::BTreeSet;

use super::Subject;
use crate::address::{Version, WaitingVersion};
use crate::mirror::{Alarm, UpstreamRules};
use crate::protocol::admin::explain::{Advice, ExpectedAnswer, ExplainStep, Rule, StepKind, Verdict, VersionChoice};
use crate::wording::shell_word;

/// The outcome for a client all in all, and the step that decides it.
pub(super) fn verdict(steps: &[ExplainStep]) -> (Verdict, Option<usize>) {
    let requested = steps.iter().position(|step| step.requested);
    // Clients of the registry do not ask the network mirror. A client with a host override does not ask for discovery.
    let is_main = |step: &ExplainStep| !matches!(step.step, StepKind::NetworkMirror | StepKind::Discovery);
    let refuses =
        |step: &ExplainStep| matches!(step.answer, ExpectedAnswer::Refused { .. }) || step.rule == Rule::NotListed;
    let asks = |step: &ExplainStep| matches!(step.answer, ExpectedAnswer::AsksUpstream);
    let is_elsewhere = |step: &ExplainStep| step.rule == Rule::Elsewhere;
    let first = |is: &dyn Fn(&ExplainStep) -> bool| {
        let main = steps.iter().position(|step| is_main(step) && is(step));
        main.or_else(|| steps.iter().position(|step| step.step == StepKind::Discovery && is(step)))
    };
    if let Some(step) = requested.and_then(|index| steps.get(index))
        && !matches!(step.answer, ExpectedAnswer::Unknown)
    {
        let verdict = match () {
            () if refuses(step) => Verdict::Refused,
            () if asks(step) => Verdict::AsksUpstream,
            () if is_elsewhere(step) => Verdict::Elsewhere,
            () => Verdict::Served,
        };
        return (verdict, requested);
    }
    if let Some(index) = first(&refuses) {
        // A version that upstream's list does not name is refused by its own step, with the reason. One at a source that
        // larder cannot fetch is never in an offline list, and its location has the reason.
        let position = |is: &dyn Fn(&ExplainStep) -> bool| {
            let refuses = |step: &ExplainStep| is_main(step) && matches!(step.answer, ExpectedAnswer::Refused { .. });
            steps.iter().position(|step| refuses(step) && is(step))
        };
        let with_reason = position(&is_elsewhere).or_else(|| position(&|_| true));
        return (Verdict::Refused, with_reason.or(Some(index)));
    }
    if let Some(index) = first(&asks) {
        return (Verdict::AsksUpstream, Some(index));
    }
    if let Some(index) = first(&is_elsewhere) {
        return (Verdict::Elsewhere, Some(index));
    }
    // What upstream could not confirm matters more than what it confirms for each request.
    let is_unconfirmed =
        |step: &ExplainStep| !matches!(step.rule, Rule::Fresh | Rule::Stored | Rule::Revalidated | Rule::StepBefore);
    let is_revalidated = |step: &ExplainStep| step.rule == Rule::Revalidated;
    (Verdict::Served, first(&is_unconfirmed).or_else(|| first(&is_revalidated)))
}

/// Advice about the step that decides, and about the alarms.
pub(super) fn advice(
    subject: &Subject,
    decisive: Option<&ExplainStep>,
    waiting: Option<&WaitingVersion>,
    alarms: &[Alarm],
    rules: Option<&UpstreamRules>,
) -> Vec<Advice> {
    let with_command = |text: &str, command: String| Advice { text: text.to_owned(), command: Some(command) };
    // One command may resolve several alarms.
    let resolve: BTreeSet<String> = alarms.iter().filter_map(|alarm| alarm.resolve.clone()).collect();
    let resolve = resolve.into_iter();
    let mut advice: Vec<Advice> =
        resolve.map(|command| with_command("if the publisher confirms the change:", command)).collect();
    let (Some(step), Some(address)) = (decisive, &subject.address) else { return advice };
    let named = subject.version.as_ref().map_or(address.to_string(), |version| format!("{address}@{version}"));
    let platform = subject.platform.as_ref().filter(|_| subject.version.is_some());
    let packages = platform.map_or(named.clone(), |platform| format!("{named} --platform {platform}"));
    let is_refused = matches!(step.answer, ExpectedAnswer::Refused { .. });
    let refresh = || format!("larder refresh {named}");
    let warm = || format!("larder warm {packages}");
    // A refresh fetches no archive of a provider.
    let again = || if step.step == StepKind::Archive { warm() } else { refresh() };
    let without_command = |text: &str| Advice { text: text.to_owned(), command: None };
    let bring = |packages: &str| {
        let create = format!("larder bundle create carry.tar --for {packages}");
        [
            with_command("on a larder with upstream access, make a bundle:", create),
            with_command("carry it here, and apply it:", "larder bundle apply carry.tar".to_owned()),
        ]
    };
    let is_in_question = |version: &Version| subject.version.as_ref().is_none_or(|chosen| chosen == version);
    if let Some(WaitingVersion { provider, version, waits_for, .. }) = waiting
        && (is_refused || step.rule == Rule::NotListed)
        && is_in_question(version)
    {
        let platforms: String = waits_for.iter().map(|platform| format!(" --platform {platform}")).collect();
        advice.extend(bring(&format!("{provider}@{version}{platforms}")));
        return advice;
    }
    if let (Some(VersionChoice::None { .. }), Some(asked)) = (&subject.choice, &subject.asked)
        && rules.is_some_and(|rules| rules.offline)
    {
        let platform = subject.platform.as_ref().map(|platform| format!(" --platform {platform}"));
        advice.extend(bring(&format!("{}{}", shell_word(asked), platform.unwrap_or_default())));
        return advice;
    }
    match step.rule {
        Rule::Elsewhere if is_refused => advice.push(without_command(
            "no bundle can bring it; to have it offline, publish it at a source that larder can fetch: git, or an archive over https",
        )),
        Rule::Elsewhere => advice.push(without_command(
            "larder stores nothing of it: the client fetches it from there, and cannot while larder is offline; to have it stored, publish it at a source that larder can fetch: git, or an archive over https",
        )),
        Rule::Offline if is_refused => advice.extend(bring(&packages)),
        Rule::LastAnswerFailed | Rule::LastAnswerLate | Rule::NotConfirmed => {
            advice.push(with_command("see if the upstream can be reached from here:", "larder doctor".to_owned()));
            advice.push(with_command("ask it again now:", again()));
        }
        Rule::LeftAlone => {
            advice.push(with_command("larder asks by itself after the pause; to ask now:", refresh()));
        }
        Rule::NotVerified => advice.push(with_command("when its publisher has mended it, ask again:", again())),
        Rule::NotListed if rules.is_some_and(|rules| !rules.offline) => {
            advice.push(with_command("if it was published a moment ago, ask for the list again:", refresh()));
        }
        Rule::NotStored if subject.version.is_some() => {
            let text = "nothing: the first client that asks gets it from upstream; to store it before:";
            advice.push(with_command(text, warm()));
        }
        _ => {}
    }
    advice
}
