//! What models write, right and wrong, and what it should be read as.
//!
//! [`OUTPUTS`] is data, for tests of whatever reads outputs: each is given with its tokens, and with what should come
//! out. The parser's own tests are [`super::parser`]'s.

use chat::harmony::MessageKind;
use chat::harmony::parser::Repair;
use model::tokenizer::Tokenizer;
use model::tokenizer::split::Split;

/// A piece of an output.
#[derive(Clone, Copy, Debug)]
pub enum Piece {
    /// Names of special tokens are those tokens.
    Marked(&'static str),
    /// Names of special tokens are spelled in ordinary ones.
    Ordinary(&'static str),
    /// Bytes that need not be characters.
    Bytes(&'static [u8]),
}

use Piece::{Bytes, Marked, Ordinary};

/// One output after `<|start|>assistant`.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// A sentence for people.
    pub what: &'static str,
    pub pieces: &'static [Piece],
    /// The messages that it is, and their texts.
    pub parts: &'static [(MessageKind<'static>, &'static str)],
    /// Whether the turn is over.
    pub is_over: bool,
    pub repairs: &'static [Repair],
}

impl Output {
    pub fn ids(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ids = self.pieces.iter().flat_map(|piece| match piece {
            Marked(text) => tokenizer.encode_with_specials(text.as_bytes()).expect("UTF-8"),
            Ordinary(text) => tokenizer.encode(text.as_bytes()).expect("UTF-8"),
            Bytes(bytes) => tokenizer.with_split(Split::Seeds).encode(bytes).expect("any bytes"),
        });
        ids.collect()
    }
}

const REASONING: MessageKind<'_> = MessageKind::Reasoning;
const PREAMBLE: MessageKind<'_> = MessageKind::Preamble;
const ANSWER: MessageKind<'_> = MessageKind::Answer;
const F: MessageKind<'_> = MessageKind::Call("f");

const fn output(
    what: &'static str,
    pieces: &'static [Piece],
    parts: &'static [(MessageKind<'static>, &'static str)],
    repairs: &'static [Repair],
) -> Output {
    Output { what, pieces, parts, is_over: true, repairs }
}

/// One that was cut, or goes on.
const fn open(
    what: &'static str,
    pieces: &'static [Piece],
    parts: &'static [(MessageKind<'static>, &'static str)],
    repairs: &'static [Repair],
) -> Output {
    Output { what, pieces, parts, is_over: false, repairs }
}

pub const OUTPUTS: &[Output] = &[
    // ---- as the format has it ----
    output(
        "analysis and an answer",
        &[Marked(
            "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
        )],
        &[(REASONING, "Think."), (ANSWER, "Yes.")],
        &[],
    ),
    output(
        "analysis, a preamble and a call",
        &[Marked(
            "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>\
             <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>",
        )],
        &[(REASONING, "Think."), (PREAMBLE, "I look."), (F, "{\"a\":1}")],
        &[],
    ),
    output(
        "a recipient in the role",
        &[Marked(" to=functions.f<|channel|>commentary json<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[],
    ),
    output(
        "a recipient behind the channel, and a mark before the type",
        &[Marked("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[],
    ),
    output(
        "the same without a blank",
        &[Marked("<|channel|>commentary to=functions.f<|constrain|>json<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[],
    ),
    output(
        "a call on the channel of analysis, as of built-in tools",
        &[Marked("<|channel|>analysis to=functions.f code<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[],
    ),
    output(
        "a tool that nobody defined",
        &[Marked("<|channel|>analysis to=browser.search code<|message|>{\"query\":\"x\"}<|call|>")],
        &[(MessageKind::Call("browser.search"), "{\"query\":\"x\"}")],
        &[],
    ),
    output(
        "a name without its namespace",
        &[Marked(" to=f<|channel|>commentary json<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[],
    ),
    output(
        "an answer with a type",
        &[Marked("<|channel|>final <|constrain|>json<|message|>{}<|return|>")],
        &[(ANSWER, "{}")],
        &[],
    ),
    output(
        "characters of several tokens",
        &[Marked("<|channel|>final<|message|>"), Bytes("é🎈".as_bytes()), Marked("<|return|>")],
        &[(ANSWER, "é🎈")],
        &[],
    ),
    output("nothing at all", &[Marked("<|return|>")], &[], &[]),
    output("the end of a text", &[Marked("<|endoftext|>")], &[], &[]),
    // ---- headers ----
    output(
        "two recipients",
        &[Marked(" to=functions.f<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[Repair::SecondRecipient],
    ),
    open(
        "two recipients, and no end",
        &[Marked(" to=functions.f<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}")],
        &[(F, "{}")],
        &[Repair::SecondRecipient],
    ),
    output(
        "a mark before the type that is spelled in ordinary tokens",
        &[
            Marked("<|channel|>commentary "),
            Ordinary("to=functions.f<|constrain|>json"),
            Marked("<|message|>{}<|call|>"),
        ],
        &[(F, "{}")],
        &[Repair::SpelledMark],
    ),
    output(
        "the same in the role",
        &[Ordinary(" to=functions.f<|constrain|>json"), Marked("<|channel|>commentary<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[Repair::SpelledMark],
    ),
    output(
        "a whole header spelled in ordinary tokens",
        &[Ordinary("<|channel|>final<|message|>Yes, <|channel|>"), Marked("<|return|>")],
        &[(ANSWER, "Yes, <|channel|>")],
        &[Repair::SpelledMark, Repair::SpelledMark],
    ),
    open(
        "two channels",
        &[Marked("<|channel|>commentary<|channel|>analysis<|message|>x")],
        &[(REASONING, "x")],
        &[Repair::SecondChannel],
    ),
    open(
        "two channels, and words to itself",
        &[Marked("<|channel|>commentary to=assistant<|channel|>analysis<|message|>x")],
        &[(REASONING, "x")],
        &[Repair::SecondChannel, Repair::OddRecipient],
    ),
    open(
        "a channel twice in one word",
        &[Marked("<|channel|>commentary––commentary to=functions.f<|message|>{}")],
        &[(F, "{}")],
        &[Repair::OddChannel],
    ),
    output(
        "a recipient that sticks to the channel",
        &[Marked("<|channel|>commentaryto=functions.f <|constrain|>json<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[],
    ),
    output(
        "a channel that the format lacks",
        &[Marked("<|channel|>gossip<|message|>x<|return|>")],
        &[(ANSWER, "x")],
        &[Repair::OddChannel],
    ),
    output("no channel", &[Marked("<|message|>x<|return|>")], &[(ANSWER, "x")], &[]),
    output(
        "words too many",
        &[Marked("<|channel|>commentary for you only to=functions.f<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[Repair::OddWords],
    ),
    output(
        "a channel without its mark",
        &[Marked("commentary to=functions.f json<|message|>{}<|call|>")],
        &[(F, "{}")],
        &[],
    ),
    // ---- what is missing ----
    output(
        "no `<|message|>` before an answer",
        &[Marked("<|channel|>final {\"a\": 1}<|return|>")],
        &[(ANSWER, "{\"a\": 1}")],
        &[Repair::MissingMessage],
    ),
    output(
        "no `<|message|>` before prose",
        &[Marked("<|channel|>final The answer is 42<|return|>")],
        &[(ANSWER, "The answer is 42")],
        &[Repair::MissingMessage],
    ),
    output(
        "no `<|message|>` before arguments",
        &[Marked("<|channel|>commentary to=functions.f {\"a\": 1}<|call|>")],
        &[(F, "{\"a\": 1}")],
        &[Repair::MissingMessage],
    ),
    output(
        "no `<|message|>` and no channel either",
        &[Marked("<|channel|>The answer is 42<|return|>")],
        &[(ANSWER, "The answer is 42")],
        &[Repair::MissingMessage],
    ),
    output("no header", &[Marked("Hello<|return|>")], &[(ANSWER, "Hello")], &[Repair::MissingMessage]),
    open("no header and no end", &[Marked(" just text")], &[(ANSWER, " just text")], &[Repair::MissingMessage]),
    output(
        "an answer that begins with a channel's name",
        &[Marked("final answer: 4<|return|>")],
        &[(ANSWER, "final answer: 4")],
        &[Repair::MissingMessage],
    ),
    open(
        "no `<|start|>` behind analysis",
        &[Marked("<|channel|>analysis<|message|>a<|end|>We need")],
        &[(REASONING, "a"), (REASONING, "We need")],
        &[Repair::MissingStart, Repair::MissingMessage],
    ),
    open(
        "no `<|start|>` behind a preamble",
        &[Marked("<|channel|>commentary<|message|>a<|end|>We need")],
        &[(PREAMBLE, "a"), (ANSWER, "We need")],
        &[Repair::MissingStart, Repair::MissingMessage],
    ),
    output(
        "no `<|start|>`, but a header",
        &[Marked("<|channel|>analysis<|message|>a<|end|>assistant<|channel|>final<|message|>b<|return|>")],
        &[(REASONING, "a"), (ANSWER, "b")],
        &[Repair::MissingStart],
    ),
    output(
        "no end",
        &[Marked("<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>")],
        &[(REASONING, "a"), (ANSWER, "b")],
        &[Repair::MissingEnd],
    ),
    output(
        "words between messages",
        &[Marked("<|message|>a<|end|>b<|message|>c<|return|>")],
        &[(ANSWER, "a"), (ANSWER, "b"), (ANSWER, "c")],
        &[Repair::MissingStart, Repair::MissingMessage, Repair::MarkInText],
    ),
    // ---- what is too much ----
    output("two ends", &[Marked("<|return|><|return|>")], &[], &[Repair::AfterEnd]),
    output(
        "words behind the end",
        &[Marked("<|channel|>final<|message|>x<|return|>y<|call|>")],
        &[(ANSWER, "x")],
        &[Repair::AfterEnd],
    ),
    open("ends of nothing", &[Marked("<|end|><|end|><|start|><|start|>")], &[], &[]),
    output(
        "a channel inside of a text",
        &[Marked("<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>")],
        &[(REASONING, "a"), (ANSWER, "b")],
        &[Repair::MarkInText],
    ),
    output(
        "`<|message|>` inside of a text",
        &[Marked("<|channel|>final<|message|>a<|message|>b<|return|>")],
        &[(ANSWER, "a"), (ANSWER, "b")],
        &[Repair::MarkInText],
    ),
    output(
        "other special tokens inside of a text",
        &[Marked("<|channel|>final<|message|>a<|constrain|>b<|startoftext|>c<|return|>")],
        &[(ANSWER, "abc")],
        &[Repair::MarkInText, Repair::MarkInText],
    ),
    output(
        "words for the user",
        &[Marked("<|channel|>final<|message|>x<|end|><|start|>user<|message|>more<|end|>")],
        &[(ANSWER, "x")],
        &[Repair::OtherSpeaker, Repair::AfterEnd],
    ),
    output(
        "words for a tool",
        &[Marked(
            " to=functions.f<|channel|>commentary json<|message|>{}<|end|>\
             <|start|>functions.f to=assistant<|channel|>commentary<|message|>1",
        )],
        &[(F, "{}")],
        &[Repair::OtherSpeaker, Repair::AfterEnd],
    ),
    // ---- arguments and characters ----
    output(
        "arguments that are no JSON",
        &[Marked(" to=functions.f<|channel|>commentary json<|message|>[{\"a\": }]<|call|>")],
        &[(F, "[{\"a\": }]")],
        &[],
    ),
    output(
        "a bracket too many",
        &[Marked(" to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}]<|call|>")],
        &[(F, "{\"a\": 1}]")],
        &[],
    ),
    output(
        "no arguments",
        &[Marked(" to=functions.f<|channel|>commentary json<|message|><|call|>")],
        &[(F, "{}")],
        &[Repair::EmptyArguments],
    ),
    output(
        "no arguments and no `<|message|>`",
        &[Marked("<|channel|>commentary to=functions.f json<|call|>")],
        &[(F, "{}")],
        &[Repair::MissingMessage, Repair::EmptyArguments],
    ),
    open(
        "three bytes of a character of four",
        &[Marked("<|channel|>final<|message|>a"), Bytes(b"\xf0\x9f\x8e")],
        &[(ANSWER, "a\u{fffd}")],
        &[],
    ),
];
