use std::io::Write as _;

use super::*;

#[test]
fn errors_name_the_field_and_what_was_found() {
    let told = |text: &str| {
        let ApiError { code, param, message, .. } = parse::<PromptBody>(text.as_bytes()).unwrap_err();
        (code.unwrap_or_default(), param.unwrap_or_default(), message)
    };
    let prompt = "`prompt` should be a text or token ids, or a list of such, but is";
    assert_eq!(told(r#"{"prompt": {}}"#), ("invalid_value", "prompt".into(), format!("{prompt} an object")));
    assert_eq!(told(r#"{"prompt": 2.5}"#).2, format!("{prompt} `2.5`"));
    assert_eq!(told("[]"), ("invalid_value", String::new(), "the body should be an object, but is a list".into()));
    for text in ["", "{", r#"{"prompt": []"#, r#"{"a": []} x"#, "{\"a\": [\u{1}"] {
        assert_eq!(told(text).0, if text.contains("prompt") { "invalid_value" } else { "invalid_json" }, "{text}");
    }
    assert!(told("{\0\"\0}\0").2.contains("UTF-16"));
}

#[test]
fn ids_are_apart_from_all_else_and_null_is_absent() {
    let body: PromptBody = parse(br#"{"prompt": null, "tokens": [1, 2], "n": null, "x": {"y": 1}}"#).unwrap();
    assert_eq!((body.prompt, body.tokens), (None, Some(vec![1, 2])));
    assert_eq!(body.rest, serde_json::json!({"n": null, "x": {"y": 1}}));
}

#[test]
fn a_body_may_be_compressed_up_to_the_limit() {
    let packed = |text: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    };
    let room = BodyRoom::default();
    let unpacked = |bytes: &[u8]| unpacked(bytes, &room, &mut None);
    assert_eq!(unpacked(&packed(b"{}")).unwrap(), b"{}");
    assert_eq!(unpacked(&packed(&vec![b' '; MAX_BYTES + 1])).unwrap_err().status.as_u16(), 413);
    assert_eq!(unpacked(b"{}").unwrap_err().code, Some("invalid_json"));
    let coding = |coding: &'static str| {
        is_packed(&HeaderMap::from_iter([(header::CONTENT_ENCODING, header::HeaderValue::from_static(coding))]))
    };
    assert!(coding("gzip").unwrap() && !coding("identity").unwrap() && !is_packed(&HeaderMap::new()).unwrap());
    assert_eq!(coding("br").unwrap_err().status.as_u16(), 415);
}

#[test]
fn a_type_has_to_be_there_and_may_have_parameters() {
    let check = |value: &'static str| {
        check_type(&HeaderMap::from_iter([(header::CONTENT_TYPE, header::HeaderValue::from_static(value))]))
    };
    assert!(check("application/json; charset=utf-8").is_ok());
    assert!(check("application/vnd.api+json").is_ok());
    for refused in [check_type(&HeaderMap::new()), check("text/plain"), check("application/x-www-form-urlencoded")] {
        assert_eq!(refused.unwrap_err().status.as_u16(), 415);
    }
}

#[test]
fn texts_have_the_bytes_that_they_have_without_escapes_or_fewer() {
    let of = |text: &str| Extent::measure(text.as_bytes());
    let texts = |text: &str| (of(text).text_bytes, of(text).longest_bytes);
    assert_eq!(texts(r#"{"ab": "c\"d,[{", "e": 1}"#), (2 + 6 + 1, 6));
    assert_eq!(texts(r#"["\u00e9\n\\", "\u12"#), (3 + 1, 3));
    assert_eq!(texts(r#"["\"#), (1, 1), "what is cut off is no JSON");
    for text in ["é\n\"\\x", "\u{1}😀", ""] {
        let json = serde_json::to_string(text).unwrap();
        assert!(texts(&json).0 <= text.len(), "{json}");
    }
}

#[test]
fn values_are_counted_and_texts_are_not() {
    let count = |text: &str| Extent::measure(text.as_bytes()).value_bytes(8);
    assert_eq!(count(r#""a, b: [{""#), 0);
    assert_eq!(count("[1, 2.5e-3 , 3]"), Extent::LIST_BYTES + 2 * Extent::MORE_BYTES);
    let of_list = Extent::OBJECT_BYTES + Extent::FIELD_BYTES + Extent::LIST_BYTES;
    assert_eq!(count(r#"{"tokens": [1, 2, 3]}"#), of_list + 2 * 8);
    assert_eq!(count(r#"{"bans": [1, 2, 3]}"#), of_list + 2 * Extent::MORE_BYTES);
    let fields = Extent::OBJECT_BYTES + 2 * Extent::FIELD_BYTES + Extent::MORE_BYTES;
    assert_eq!(count(r#"{"a": 1, "b": "c"}"#), fields);
    let inner = 2 * Extent::OBJECT_BYTES + 2 * Extent::FIELD_BYTES + Extent::LIST_BYTES + Extent::MORE_BYTES;
    assert_eq!(count(r#"{"logit_bias": {"1": [1, 2]}}"#), inner, "of any values, which are no plain numbers");
    assert_eq!(
        count(r#"{"a": {}, "prompt": [[1, 2], [3]]}"#),
        2 * Extent::OBJECT_BYTES + 2 * Extent::FIELD_BYTES + 3 * Extent::LIST_BYTES + 2 * Extent::MORE_BYTES + 8
    );
    let mixed = r#"{"prompt": [{"a": 1}, 2, "3", [4, 5], null, true]}"#; // behind 2 and 4, and behind four others
    let lists = 2 * Extent::LIST_BYTES + 2 * Extent::OBJECT_BYTES + 2 * Extent::FIELD_BYTES;
    assert_eq!(count(mixed), lists + 2 * 8 + 4 * Extent::MORE_BYTES);
}

#[test]
fn what_no_prompt_can_have_is_refused_before_it_is_read() {
    let check = |text: &str, is_one| Extent::measure(text.as_bytes()).check(is_one, 10, 2).map_err(|error| error.code);
    let two = r#"["123456", "123456"]"#;
    assert_eq!(check(two, false), Ok(()));
    assert_eq!(check(two, true), Err(Some("context_length_exceeded")));
    assert_eq!(check(r#"["12345678901"]"#, false), Err(Some("context_length_exceeded")));
}

#[test]
fn bodies_share_the_room_that_there_is() {
    let room = BodyRoom::default();
    let (mut short, mut long, mut other) = (None, None, None);
    room.hold(FREE_BYTES, &mut short).unwrap();
    assert!(short.is_none());
    room.hold(ROOM_BYTES - 1024, &mut long).unwrap();
    assert_eq!(room.hold(FREE_BYTES + (1 << 20), &mut other).unwrap_err().status.as_u16(), 503);
    drop(long);
    for n in [FREE_BYTES + 1, FREE_BYTES + 5000, FREE_BYTES + 5000] {
        room.hold(n, &mut other).unwrap();
    }
    assert_eq!(other.map(|held| held.num_permits()), Some(5));
}
