//! The built-in vocabulary against `tiktoken-rs`, `tokenizer.bin` files written here, chats, and the two commands.

use std::io::Write;
use std::process::{Command, Stdio};

use bytes::Bytes;
use chat::harmony::parser::{Ending, ParserEvent};
use chat::harmony::{Channel, Harmony, HarmonyError, Message, MessageKind, Role};
use model::tokenizer::split::Split;
use model::tokenizer::{Tokenizer, TokenizerError};
use proptest::prelude::*;

/// A `tokenizer.bin` whose header states the longest token's length.
fn file(tokens: &[(f32, &[u8])]) -> Vec<u8> {
    let longest = tokens.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(1);
    let mut file = (longest as i32).to_le_bytes().to_vec();
    for (score, bytes) in tokens {
        file.extend(score.to_le_bytes());
        file.extend((bytes.len() as i32).to_le_bytes());
        file.extend(*bytes);
    }
    file
}

fn read(file: Vec<u8>, vocab_size: Option<usize>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_bin(Bytes::from(file), vocab_size, Some(Split::Seeds))
}

fn message(file: Vec<u8>, vocab_size: Option<usize>) -> String {
    read(file, vocab_size).unwrap_err().to_string()
}

/// Eight tokens: `a` and `b` merge to `ab`, `aba` needs that first; `ba` comes late; digits merge, too.
fn small() -> Tokenizer {
    let special = -1e30;
    read(
        file(&[
            (0.0, b"<0x00>"),
            (1.0, b"a"),
            (2.0, b"b"),
            (3.0, b"ab"),
            (4.0, b"ba"),
            (5.0, b"1"),
            (6.0, b"11"),
            (7.0, b"a1"),
            (special, b"<|end|>"),
            (special, b"bb"),
        ]),
        None,
    )
    .unwrap()
}

#[test]
fn a_small_file_encodes_as_worked_out_by_hand() {
    let tokenizer = small();
    for (text, ids) in [
        ("", vec![]),
        ("a", vec![1]),
        ("abab", vec![3, 3]),
        ("bab", vec![2, 3]), // `ab` has the lower id, though `ba` lies to the left
        ("baa", vec![4, 1]),
        ("bb", vec![2, 2]),      // special tokens are never merged to
        ("a1", vec![1, 5]),      // letters and digits are cut apart, so that `a1` is out of reach
        ("1111", vec![6, 5, 5]), // digits in threes: 11 1, then 1
        ("azb", vec![1, 0, 2]),  // no such byte: id 0
        ("ab\0ab", vec![3]),     // the text ends at NUL
    ] {
        assert_eq!(tokenizer.encode(text.as_bytes()).unwrap(), ids, "{text:?}");
    }
    assert_eq!(tokenizer.encode(b"\xff\xfea").unwrap(), [0, 0, 1]);
    assert_eq!(tokenizer.encode_with_specials(b"ab<|end|>bb<|end").unwrap()[..4], [3, 8, 9, 0]);
    assert_eq!(tokenizer.special("<|end|>"), Some(8));
    assert_eq!((tokenizer.special("ab"), tokenizer.vocab_size()), (None, 10));
    assert_eq!((tokenizer.decode(0).unwrap(), tokenizer.decode(8).unwrap()), (&b"\0"[..], &b"<|end|>"[..]));
    assert_eq!(tokenizer.decode(10).unwrap_err().to_string(), "10 is no token id: the vocabulary has 10 tokens");
}

#[test]
fn with_words_split_the_nul_byte_has_its_token() {
    let tokenizer = small().with_split(Split::O200k);
    assert_eq!(tokenizer.encode(b"ab\0ab").unwrap(), [3, 0, 3]);
    assert_eq!(tokenizer.encode(b"a b").unwrap(), [1, 0, 2]);
}

#[test]
fn of_two_tokens_with_the_same_bytes_text_gives_the_lower_id() {
    let tokenizer = read(file(&[(0.0, b"a"), (1.0, b"b"), (2.0, b"ab"), (3.0, b"ab"), (4.0, b"b")]), None).unwrap();
    assert_eq!(tokenizer.encode(b"bab").unwrap(), [1, 2]);
    assert_eq!(tokenizer.decode(4).unwrap(), b"b");
}

#[test]
fn records_beyond_the_models_vocabulary_are_ignored_and_missing_ones_refused() {
    let bytes = file(&[(0.0, b"a"), (1.0, b"b"), (2.0, b"ab")]);
    let tokenizer = read(bytes.clone(), Some(2)).unwrap();
    assert_eq!((tokenizer.vocab_size(), tokenizer.encode(b"ab").unwrap()), (2, vec![0, 1]));
    assert_eq!(message(bytes.clone(), Some(4)), "the file holds 3 tokens, expected 4");
    assert_eq!(
        read(bytes, None).unwrap().check_model(2).unwrap_err().to_string(),
        "the tokenizer has 3 tokens, the model only 2"
    );
}

#[test]
fn damaged_files_are_refused_with_record_and_offset() {
    let whole = file(&[(0.0, b"a"), (1.0, b"bcd")]);
    assert_eq!(whole.len(), 4 + 9 + 11);
    assert_eq!(
        message(vec![], None),
        "the file has 0 bytes and ends within the header, which takes 4 bytes from offset 0"
    );
    assert_eq!(message(whole[..4].to_vec(), None), "the file holds 0 tokens, expected 1");
    assert_eq!(
        message(whole[..23].to_vec(), None),
        "the file has 23 bytes and ends within record 1, which takes 3 bytes from offset 21"
    );
    for cut in [5, 9, 12, 14, 18, 22] {
        assert!(matches!(read(whole[..cut].to_vec(), None), Err(TokenizerError::Truncated { .. })), "{cut}");
    }
    let with_word = |offset: usize, word: [u8; 4]| {
        let mut file = whole.clone();
        file[offset..offset + 4].copy_from_slice(&word);
        message(file, None)
    };
    for length in [0, -1, 4, i32::MAX, i32::MIN] {
        assert_eq!(
            with_word(17, length.to_le_bytes()),
            format!("record 1 at offset 13 is {length} bytes long, expected 1 to 3, the header's longest token")
        );
    }
    assert_eq!(with_word(0, 0i32.to_le_bytes()), "the header's longest token has 0 bytes, expected 1 to 65536");
    assert!(with_word(13, f32::NAN.to_le_bytes()).starts_with("record 1 at offset 13 has the score NaN"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_file_panics(changes in prop::collection::vec((0usize..60, any::<u8>()), 0..4), text in any::<Vec<u8>>()) {
        let mut bytes = file(&[(0.0, b"a"), (1.0, b"<0x00>"), (2.0, b"ab"), (-1e30, b"<|end|>")]);
        for (offset, byte) in changes {
            if let Some(at) = bytes.get_mut(offset) {
                *at = byte;
            }
        }
        if let Ok(tokenizer) = read(bytes, None) {
            let ids = tokenizer.encode(&text).unwrap();
            prop_assert!(tokenizer.decode_all(&ids).is_ok());
            prop_assert!(tokenizer.encode_with_specials(&text).is_ok());
        }
    }
}

#[test]
fn the_builtin_vocabulary_has_the_published_special_tokens() {
    let tokenizer = Tokenizer::o200k_harmony();
    assert_eq!(tokenizer.vocab_size(), 201_088);
    for (name, id) in [
        ("<|startoftext|>", 199_998),
        ("<|endoftext|>", 199_999),
        ("<|return|>", 200_002),
        ("<|constrain|>", 200_003),
        ("<|channel|>", 200_005),
        ("<|start|>", 200_006),
        ("<|end|>", 200_007),
        ("<|message|>", 200_008),
        ("<|call|>", 200_012),
        ("<|endofprompt|>", 200_018),
        ("<|reserved_201087|>", 201_087),
    ] {
        assert_eq!(tokenizer.special(name), Some(id), "{name}");
    }
    assert_eq!(tokenizer.special("hello"), None);
    assert!(tokenizer.decode(201_088).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_builtin_encoder_is_tiktokens(text in r"([a-zA-Z'é]{0,6}|[ \t\r\n]{0,4}|[0-9²٣]{0,5}|\PC{0,6}|'(s|LL|ſ)|.|\u{301}|\u{a0}|日本|/){0,12}") {
        let tokenizer = Tokenizer::o200k_harmony();
        let theirs = tiktoken_rs::o200k_harmony_singleton();
        let ids = tokenizer.encode(text.as_bytes()).unwrap();
        prop_assert_eq!(&ids, &theirs.encode_ordinary(&text), "{:?}", text);
        prop_assert_eq!(tokenizer.decode_all(&ids).unwrap(), text.as_bytes());
    }

    #[test]
    fn names_of_special_tokens_are_found_as_tiktoken_finds_them(parts in prop::collection::vec(
        prop_oneof![Just("<|end|>"), Just("<|start|>"), Just("<|"), Just(" a"), Just("|>"), Just("<|return|>\n")], 0..8)
    ) {
        let text = parts.concat();
        let ids = Tokenizer::o200k_harmony().encode_with_specials(text.as_bytes()).unwrap();
        prop_assert_eq!(ids, tiktoken_rs::o200k_harmony_singleton().encode_with_special_tokens(&text));
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_where_words_are_split() {
    let tokenizer = Tokenizer::o200k_harmony();
    let error = tokenizer.encode_with_specials(b"ab<|end|>c\xff").unwrap_err();
    assert!(matches!(error, TokenizerError::NotUtf8 { offset: 10 }), "{error:?}");
    assert!(tokenizer.with_split(Split::Seeds).encode(b"ab\xff").is_ok());
}

fn parse(harmony: &Harmony, ids: &[u32]) -> Vec<ParserEvent> {
    let mut parser = harmony.transcript_parser();
    let mut events: Vec<ParserEvent> = ids.iter().flat_map(|&id| parser.push(id)).collect();
    events.extend(parser.finish());
    events
}

fn ended(events: &[ParserEvent]) -> Vec<(Message, Ending)> {
    events
        .iter()
        .filter_map(|event| match event {
            ParserEvent::Ended { message, ending } => Some((message.clone(), *ending)),
            _ => None,
        })
        .collect()
}

/// What the model wrote, given as text.
fn written(text: &str) -> Vec<ParserEvent> {
    let tokenizer = Tokenizer::o200k_harmony();
    let ids = tokenizer.encode_with_specials(text.as_bytes()).unwrap();
    parse(&Harmony::new(tokenizer).unwrap(), &ids)
}

#[test]
fn the_published_answer_parses_into_two_messages() {
    // The tokens are those of the format's own example.
    let ids = [
        200005, 35644, 200008, 1844, 31064, 25, 392, 4827, 382, 220, 17, 659, 220, 17, 16842, 12295, 81645, 13, 51441,
        6052, 13, 200007, 200006, 173781, 200005, 17196, 200008, 17, 659, 220, 17, 314, 220, 19, 13, 200002,
    ];
    let harmony = Harmony::new(Tokenizer::o200k_harmony()).unwrap();
    let events = parse(&harmony, &ids);
    assert_eq!(
        ended(&events),
        [
            (
                Message::assistant(
                    Channel::Analysis,
                    "User asks: \"What is 2 + 2?\" Simple arithmetic. Provide answer."
                ),
                Ending::End
            ),
            (Message::assistant(Channel::Final, "2 + 2 = 4."), Ending::Return),
        ]
    );
    let shown: String = events
        .iter()
        .filter_map(|event| match event {
            ParserEvent::Text { channel: Some(Channel::Final), text } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(shown, "2 + 2 = 4.");
    assert_eq!(harmony.stop_ids(), [200_002, 200_012]);
}

#[test]
fn a_tool_call_parses_wherever_its_recipient_stands() {
    let call = Message {
        recipient: Some("functions.f".into()),
        content_type: Some("json".into()),
        ..Message::assistant(Channel::Commentary, "{}")
    };
    for text in [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>",
        " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>",
        " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
    ] {
        assert_eq!(ended(&written(text)), [(call.clone(), Ending::Call)], "{text}");
    }
}

fn messages() -> impl Strategy<Value = Vec<Message>> {
    let channel = prop_oneof![Just(Channel::Commentary), Just(Channel::Final), Just(Channel::Analysis)];
    let text = "[a-z<|>é🎈\n ]{0,20}|<\\|end\\|>";
    let message = prop_oneof![
        text.prop_map(|text| Message::new(Role::User, text)),
        text.prop_map(|text| Message::new(Role::System, text)),
        text.prop_map(|text| Message::tool_result("functions.f", text)),
        (channel, text, any::<bool>()).prop_map(|(channel, text, is_call)| Message {
            recipient: is_call.then(|| "functions.f".into()),
            content_type: is_call.then(|| "json".into()),
            ..Message::assistant(channel, text)
        }),
    ];
    prop::collection::vec(message, 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parsing_what_was_rendered_gives_the_conversation(conversation in messages()) {
        let harmony = Harmony::new(Tokenizer::o200k_harmony()).unwrap();
        let ids = harmony.prompt(&conversation).unwrap();
        // The parser begins after `<|start|>assistant`; a first, empty message brings it to where a prompt begins.
        let first = [harmony.prompt(&[]).unwrap(), vec![200_008, 200_007]].concat();
        let parsed = ended(&parse(&harmony, &[&first[2..], &ids[..]].concat()));
        let last_final = conversation.iter().rposition(|message| message.channel == Some(Channel::Final));
        let kept = conversation.iter().enumerate().filter(|(i, message)| {
            message.part() != MessageKind::Reasoning || last_final.is_none_or(|last| *i > last)
        });
        let want: Vec<Message> = kept.map(|(_, message)| message.clone()).collect();
        let got: Vec<Message> = parsed.into_iter().skip(1).map(|(message, _)| message).collect();
        prop_assert_eq!(got, want);
    }
}

#[test]
fn a_prompts_ids_spell_its_text() {
    let conversation = [Message::new(Role::System, "Be brief."), Message::new(Role::User, "Say <|end|>.")];
    let harmony = Harmony::new(Tokenizer::o200k_harmony()).unwrap();
    let ids = harmony.prompt(&conversation).unwrap();
    let text =
        "<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>Say <|end|>.<|end|><|start|>assistant";
    assert_eq!(harmony.spelled(&ids), text);
    assert_eq!(ids.iter().filter(|&&id| id == 200_007).count(), 2, "what the user writes ends no message");
}

#[test]
fn a_vocabulary_without_chats_is_refused_by_name() {
    let error = Harmony::new(small()).unwrap_err();
    let HarmonyError::MissingSpecials { names } = &error else { panic!("{error:?}") };
    assert_eq!(names[..2], ["<|start|>", "<|message|>"]);
    assert_eq!(names.len(), 6, "all but <|end|>: {names:?}");
}

fn command(arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gptoss-jit"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails early need not read its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn tokenize_and_decode_are_inverse_on_the_command_line() {
    let text = "Hello, world\n";
    let (code, ids, _) = command(&["tokenize"], text.as_bytes());
    assert_eq!((code, ids.as_str()), (Some(0), "13225 11 2375 198\n"));
    let (code, back, _) = command(&["decode"], ids.as_bytes());
    assert_eq!((code, back.as_str()), (Some(0), "Hello, world\n\n"));
    let (_, json, _) = command(&["tokenize", "--json", "--special", "-i", "<|start|>user"], b"");
    assert_eq!(json, "{\"schema\":1,\"ids\":[200006,1428]}\n");
    let (_, json, _) = command(&["decode", "--json", "--line", "2"], b"1\n13225 11 2375\n");
    assert_eq!(json, "{\"schema\":1,\"line\":2,\"text\":\"Hello, world\"}\n");
}

#[test]
fn the_commands_take_a_file_and_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.bin");
    std::fs::write(&path, file(&[(0.0, b"a"), (1.0, b"b"), (2.0, b"ab")])).unwrap();
    let path = path.to_str().unwrap();
    assert_eq!(command(&["tokenize", "-z", path], b"ab").1, "2\n");
    assert_eq!(command(&["tokenize", "-z", path, "--vocab-size", "2"], b"ab").1, "0 1\n");
    assert_eq!(command(&["decode", "-z", path], b"2 0\n\n1\n").1, "aba\n\nb\n");

    for (arguments, input, code, wanted) in [
        (&["tokenize", "-z", path, "--vocab-size", "9"][..], &b"ab"[..], 1, "the file holds 3 tokens, expected 9"),
        (&["tokenize", "-z", "/nonexistent"], b"", 1, "could not read tokenizer `/nonexistent`"),
        (&["tokenize", "--vocab-size", "9"], b"", 2, "--tokenizer"),
        (&["tokenize"], b"ab\xff", 1, "the text is not UTF-8 at byte 2"),
        (&["decode", "-z", path], b"1\n1 x\n", 1, "could not decode `x` in line 2"),
        (&["decode", "-z", path], b"3\n", 1, "3 is no token id: the vocabulary has 3 tokens"),
        (&["decode", "-z", path, "--line", "4"], b"1\n", 1, "could not decode line 4: the input has 1 lines"),
    ] {
        let (found, _, stderr) = command(arguments, input);
        assert_eq!(found, Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(wanted), "{arguments:?}: {stderr}");
    }
}
