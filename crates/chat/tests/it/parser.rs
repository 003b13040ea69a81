//! Outputs of models are read as they were meant, whole, cut, and of any tokens.

use chat::harmony::parser::{Ending, HarmonyParser, ParserEvent, Repair};
use chat::harmony::{Harmony, Message, MessageKind, Role};
use model::tokenizer::Tokenizer;
use proptest::prelude::*;

use fixtures::outputs::OUTPUTS;

/// The messages of an output. The events must tell the same texts as the messages.
fn read(parser: &mut HarmonyParser, ids: &[u32]) -> Vec<(Message, Ending)> {
    let mut events: Vec<ParserEvent> = ids.iter().flat_map(|&id| parser.push(id)).collect();
    events.extend(parser.finish());
    assert_eq!(parser.finish(), [], "it is finished");
    let (mut messages, mut open) = (Vec::new(), None::<Message>);
    for event in events {
        match event {
            ParserEvent::Started(message) => {
                assert_eq!((&open, message.text.as_str()), (&None, ""), "{message:?}");
                open = Some(message);
            }
            ParserEvent::Text { channel, text } => {
                let message = open.as_mut().expect("a message was started");
                assert!(!text.is_empty() && message.channel == channel, "{channel:?} {text:?}");
                message.text += &text;
            }
            ParserEvent::Ended { message, ending } => {
                assert_eq!(open.take().as_ref(), Some(&message), "the events tell all of the message");
                messages.push((message, ending));
            }
        }
    }
    assert_eq!(open, None, "every message ends");
    messages
}

fn parts(messages: &[(Message, Ending)]) -> Vec<(MessageKind<'_>, &str)> {
    messages.iter().map(|(message, _)| (message.part(), message.text.as_str())).collect()
}

fn harmony() -> Harmony {
    Harmony::new(Tokenizer::o200k_harmony()).expect("it has the special tokens")
}

#[test]
fn outputs_are_read_as_they_were_meant() {
    let harmony = harmony();
    for output in OUTPUTS {
        let mut parser = harmony.parser();
        let ids = output.ids(&Tokenizer::o200k_harmony());
        let mut fed = parser.clone();
        ids.iter().for_each(|&id| drop(fed.push(id)));
        assert_eq!(fed.is_over(), output.is_over, "{}", output.what);
        let messages = read(&mut parser, &ids);
        assert_eq!(parts(&messages), output.parts, "{}", output.what);
        let found: Vec<Repair> = parser.repairs().flat_map(|(repair, n)| std::iter::repeat_n(repair, n)).collect();
        let mut wanted = output.repairs.to_vec();
        wanted.sort();
        assert_eq!(found, wanted, "{}", output.what);
        // Only what did not end is unfinished.
        let ends = [Ending::Return, Ending::Call];
        let has_end = messages.last().is_some_and(|(_, ending)| ends.contains(ending));
        let is_other = output.repairs.contains(&Repair::OtherSpeaker);
        assert_eq!(has_end, output.is_over && !output.parts.is_empty() && !is_other, "{}", output.what);
    }
}

#[test]
fn what_is_read_of_a_cut_output_is_the_beginning_of_the_whole() {
    let harmony = harmony();
    for output in OUTPUTS {
        let ids = output.ids(&Tokenizer::o200k_harmony());
        for n in 0..ids.len() {
            let messages = read(&mut harmony.parser(), &ids[..n]);
            let so_far = parts(&messages);
            assert!(so_far.len() <= output.parts.len(), "{} at {n}: {so_far:?}", output.what);
            for ((part, text), (whole_part, whole)) in so_far.iter().zip(output.parts) {
                let text = text.trim_end_matches('\u{fffd}');
                assert!(part == whole_part && whole.starts_with(text), "{} at {n}: {so_far:?}", output.what);
            }
        }
    }
}

#[test]
fn a_text_is_told_as_it_comes_even_without_a_header() {
    let tokenizer = Tokenizer::o200k_harmony();
    for head in ["", "<|channel|>final<|message|>", "<|channel|>final ", "<|channel|>"] {
        let mut parser = harmony().parser();
        let text = "It was a dark and stormy night; the rain fell in torrents, except at occasional intervals.";
        let mut behind = 0;
        let mut told = String::new();
        let mut fed = 0;
        for id in tokenizer.encode_with_specials(format!("{head}{text}").as_bytes()).expect("UTF-8") {
            fed += tokenizer.decode(id).expect("an id").len();
            for event in parser.push(id) {
                told += if let ParserEvent::Text { text, .. } = &event { text } else { "" };
            }
            behind = behind.max(fed.saturating_sub(head.len() + told.len()));
        }
        assert_eq!(told, text, "{head}");
        assert!(behind < 64, "{head}: {behind} bytes are held back");
    }
}

#[test]
fn reasoning_tokens_are_those_of_analysis_with_their_headers() {
    let tokenizer = Tokenizer::o200k_harmony();
    let head = "<|channel|>analysis<|message|>Let me think.<|end|>";
    let tail = "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>";
    let [head, tail] = [head, tail].map(|text| tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8"));
    let mut parser = harmony().parser();
    head.iter().for_each(|&id| drop(parser.push(id)));
    assert_eq!(parser.n_reasoning_tokens(), head.len());
    tail.iter().for_each(|&id| drop(parser.push(id)));
    assert_eq!(parser.n_reasoning_tokens(), head.len());

    // What was said before the analysis is none of it.
    let said = "<|channel|>commentary<|message|>Let me look.<|end|>";
    let thought = "<|start|>assistant<|channel|>analysis<|message|>Where?<|end|>";
    let [said, thought] = [said, thought].map(|text| tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8"));
    let mut parser = harmony().parser();
    said.iter().chain(&thought).for_each(|&id| drop(parser.push(id)));
    assert_eq!(parser.n_reasoning_tokens(), thought.len());
}

#[test]
fn a_model_that_is_kept_from_stopping_is_read_on() {
    let tokenizer = Tokenizer::o200k_harmony();
    let text = "<|channel|>final<|message|>a<|return|><|channel|>final<|message|>b<|return|><|start|>user<|message|>c";
    let mut parser = harmony().transcript_parser();
    let messages = read(&mut parser, &tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8"));
    let roles: Vec<&Role> = messages.iter().map(|(message, _)| &message.role).collect();
    assert_eq!(roles, [&Role::Assistant, &Role::Assistant, &Role::User]);
    assert_eq!(parts(&messages), [(MessageKind::Answer, "a"), (MessageKind::Answer, "b"), (MessageKind::Answer, "c")]);
}

#[test]
fn an_id_that_no_vocabulary_has_is_passed_over() {
    let mut parser = harmony().parser();
    let messages = read(&mut parser, &[200_005, 17_196, 200_008, 1_000_000, 13_225, u32::MAX, 200_002]);
    assert_eq!(parts(&messages), [(MessageKind::Answer, "Hello")]);
    assert_eq!(parser.repairs().collect::<Vec<_>>(), [(Repair::UnknownToken, 2)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_tokens_are_read_and_no_mark_is_text(parts in prop::collection::vec(prop_oneof![
        prop::sample::select(vec![
            "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>",
            "<|endoftext|>", "assistant", "user", "functions.f", " to=functions.f", "analysis", "final", " json",
        ]).prop_map(|name| Tokenizer::o200k_harmony().encode_with_specials(name.as_bytes()).unwrap()),
        prop::collection::vec(0_u32..201_100, 0..4),
    ], 0..24)) {
        let harmony = harmony();
        let ids = parts.concat();
        for mut parser in [harmony.parser(), harmony.transcript_parser()] {
            let messages = read(&mut parser, &ids);
            for (message, _) in &messages {
                prop_assert!(!message.text.contains("<|end|>") && !message.text.contains("<|start|>"), "{messages:?}");
            }
        }
    }
}
