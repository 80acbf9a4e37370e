//! Which stages a file goes through: those that its uploader chose, among those that are configured.

use crate::stage::{Stage, show_list};
use crate::text_status::TextStatus;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    #[error("`{}` is listed twice", .0.as_str())]
    Twice(Stage),
    #[error("`{}` is not configured on this server. {}", .stage.as_str(), configured_text(.configured))]
    NotConfigured { stage: Stage, configured: Vec<Stage> },
    #[error("`{}` needs `{}`. Add it, or leave `{}` out", .0.as_str(), .1.as_str(), .0.as_str())]
    Needs(Stage, Stage),
    #[error("must contain `scan`, because this server scans every file")]
    WithoutScan,
}

fn configured_text(configured: &[Stage]) -> String {
    match configured {
        [] => "No stages are configured".to_owned(),
        some => format!("The configured stages are {}", show_list(some)),
    }
}

/// The stages of a request, checked and in the configured order. A configured scan cannot be left out: otherwise a client
/// could store infected files.
pub fn choose(wanted: &[Stage], configured: &[Stage]) -> Result<Vec<Stage>, ChoiceError> {
    for (n, stage) in wanted.iter().enumerate() {
        if wanted[..n].contains(stage) {
            return Err(ChoiceError::Twice(*stage));
        }
        if !configured.contains(stage) {
            return Err(ChoiceError::NotConfigured { stage: *stage, configured: configured.to_vec() });
        }
        if let Some(needed) = stage.needs().filter(|needed| !wanted.contains(needed)) {
            return Err(ChoiceError::Needs(*stage, needed));
        }
    }
    match configured.contains(&Stage::Scan) && !wanted.contains(&Stage::Scan) {
        true => Err(ChoiceError::WithoutScan),
        false => Ok(among(configured, wanted)),
    }
}

/// The stages of a file at its confirm. The configuration may have changed since they were chosen: a stage that was
/// removed is left out, and a scan that was added is included.
pub fn at_confirm(chosen: Option<&[Stage]>, configured: &[Stage]) -> Vec<Stage> {
    match chosen {
        None => configured.to_vec(),
        Some(chosen) => among(configured, &[chosen, &[Stage::Scan]].concat()),
    }
}

/// The stages of a failed file that is processed again: those before the failed one as they were, and from the failed one
/// on those that are still configured. Returns also the first of the latter.
pub fn at_redrive(
    stages: &[Stage],
    failed: Stage,
    text: Option<TextStatus>,
    configured: &[Stage],
) -> (Vec<Stage>, Option<Stage>) {
    let at = stages.iter().position(|stage| *stage == failed);
    let (done, rest) = stages.split_at(at.unwrap_or(stages.len()));
    let left = match at {
        Some(_) => among(rest, configured),
        None => among(&[failed], configured),
    };
    (done.iter().chain(&left).copied().collect(), next_stage(&left, text))
}

/// The stages of a file that is released although its scan found something: those up to the scan as they were, and after it
/// those that are still configured. Returns also the first of the latter.
pub fn after_scan(
    stages: &[Stage],
    text: Option<TextStatus>,
    configured: &[Stage],
) -> (Vec<Stage>, Option<Stage>) {
    // A list without a scan was edited by hand: then nothing counts as done.
    let after = stages.iter().position(|stage| *stage == Stage::Scan).map_or(0, |scan| scan + 1);
    let (done, rest) = stages.split_at(after);
    let left = among(rest, configured);
    (done.iter().chain(&left).copied().collect(), next_stage(&left, text))
}

/// The first of these stages that has something to do. A file without text is not chunked and not embedded.
pub fn next_stage(stages: &[Stage], text: Option<TextStatus>) -> Option<Stage> {
    stages.iter().copied().find(|stage| !is_skipped(*stage, text))
}

pub fn is_skipped(stage: Stage, text: Option<TextStatus>) -> bool {
    text == Some(TextStatus::None) && stage.needs().is_some()
}

fn among(stages: &[Stage], allowed: &[Stage]) -> Vec<Stage> {
    stages.iter().copied().filter(|stage| allowed.contains(stage)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Stage::{Chunk, Embed, Extract, Scan};

    #[test]
    fn a_choice_is_a_subset_in_the_configured_order() {
        let all = [Scan, Extract, Chunk, Embed];
        assert_eq!(choose(&[Chunk, Extract, Scan], &all), Ok(vec![Scan, Extract, Chunk]));
        assert_eq!(choose(&[Scan, Extract], &[Extract, Scan]), Ok(vec![Extract, Scan]));
        assert_eq!(choose(&[], &[Extract]), Ok(vec![]));
        let told = |wanted: &[Stage], configured: &[Stage]| {
            choose(wanted, configured).expect_err("refused").to_string()
        };
        assert_eq!(told(&[Extract], &all), "must contain `scan`, because this server scans every file");
        assert_eq!(
            told(&[Scan, Embed], &[Scan, Extract]),
            "`embed` is not configured on this server. The configured stages are scan,extract"
        );
        assert_eq!(told(&[Scan], &[]), "`scan` is not configured on this server. No stages are configured");
        assert_eq!(told(&[Scan, Chunk], &all), "`chunk` needs `extract`. Add it, or leave `chunk` out");
        assert_eq!(told(&[Scan, Scan], &all), "`scan` is listed twice");
    }

    #[test]
    fn at_confirm_removed_stages_are_left_out_and_a_new_scan_is_included() {
        assert_eq!(at_confirm(None, &[Scan, Extract]), [Scan, Extract]);
        assert_eq!(at_confirm(Some(&[Extract, Chunk]), &[Scan, Extract]), [Scan, Extract]);
        assert_eq!(at_confirm(Some(&[Scan, Extract]), &[Extract, Chunk]), [Extract]);
        assert_eq!(at_confirm(Some(&[]), &[Extract]), []);
    }

    #[test]
    fn a_redrive_keeps_what_is_done_and_drops_what_is_not_configured() {
        let all = [Scan, Extract, Chunk, Embed];
        assert_eq!(at_redrive(&all, Extract, None, &all), (all.to_vec(), Some(Extract)));
        assert_eq!(at_redrive(&all, Extract, None, &[Scan]), (vec![Scan], None));
        assert_eq!(at_redrive(&all, Embed, None, &[]), (vec![Scan, Extract, Chunk], None));
        assert_eq!(
            at_redrive(&[Scan, Extract], Scan, None, &[Extract, Chunk]),
            (vec![Extract], Some(Extract))
        );
        // A scan after the extraction, of a file without text.
        let late = [Extract, Scan, Chunk];
        assert_eq!(at_redrive(&late, Scan, Some(TextStatus::None), &late), (late.to_vec(), Some(Scan)));
        assert_eq!(
            at_redrive(&late, Scan, Some(TextStatus::None), &[Extract, Chunk]),
            (vec![Extract, Chunk], None)
        );
        // A row whose stage is not in its list.
        assert_eq!(at_redrive(&[], Scan, None, &all), (vec![Scan], Some(Scan)));
    }

    proptest! {
        /// Whatever is asked and however the configuration changes, no stage runs that is not configured, and none without
        /// the stage that it needs.
        #[test]
        fn a_file_never_gets_a_stage_without_its_input(
            wanted in prop::sample::subsequence(Stage::ALL.to_vec(), 0..=4),
            before in 0usize..=4,
            after in 0usize..=4,
            has_scan in any::<bool>(),
        ) {
            let configured = |n: usize| Stage::ALL[usize::from(!has_scan).min(n)..n].to_vec();
            let Ok(chosen) = choose(&wanted, &configured(before)) else { return Ok(()) };
            let stages = at_confirm(Some(&chosen), &configured(after));
            for stage in &stages {
                prop_assert!(configured(after).contains(stage));
                prop_assert!(stage.needs().is_none_or(|needed| stages.contains(&needed)));
            }
            prop_assert!(!configured(after).contains(&Scan) || stages.contains(&Scan));
        }
    }
}
