//! What a family's file says, and what is wrong with some.

use super::*;
use crate::family::{Draw, NamingScheme, Sharding, scope};
use hint::Hint;

/// A family of one tensor.
const QKV: &str = r#"
name = "small"

[dims]
hidden_size         = { max = 100, json = "hidden_size", gguf = ["embedding_length", "width"] }
head_dim            = { min = 2, max = 100 }
num_attention_heads = { max = 100 }
num_key_value_heads = { max = 100, null = 1 }

[numbers]
rope_theta = { above = 1.0 }

[expect]
json = { hidden_act = "silu" }
gguf = { "attention.value_length" = "head_dim" }

[shapes.tiny]
hidden_size         = 6
head_dim            = 4
num_attention_heads = 3
num_key_value_heads = 1
rope_theta          = 10000.0

[[tensor]]
name  = "attn.qkv.weight"
layer = true
shape = ["(num_attention_heads + 2 * num_key_value_heads) * head_dim", "hidden_size"]
hf    = ["q.weight", "k.weight", "v.weight"]
gguf  = { transposed = "qkv.weight" }
stack = ["num_attention_heads * head_dim", "num_key_value_heads * head_dim", "num_key_value_heads * head_dim"]
cut   = "head rows"
draw  = { centre = 1.0, reach = 0.5 }

[dims.vocab_size]
max     = 9
default = 5

[dims.num_hidden_layers]
max     = 9
default = "head_dim // 2"

[dims.max_seq_len]
max     = 9
default = 9

[rope]
theta = "rope_theta"
dim   = "head_dim"

[forward]
layer = """
h = linear(x, attn.qkv)
x = attention(h, window = 0) + x
"""
last  = "x = rmsnorm(x)"
"#;

fn read(text: &str) -> Result<Family, FamilyError> {
    Family::read("small.toml", text)
}

#[test]
fn a_file_says_what_a_tensor_is_in_every_format() {
    let family = read(QKV).expect("it is right");
    let [tensor] = &family.tensors[..] else { panic!("one tensor") };
    let dims = scope([("hidden_size", 6), ("head_dim", 4), ("num_attention_heads", 3), ("num_key_value_heads", 1)]);
    let pieces = |format| -> Vec<(String, Vec<usize>)> {
        tensor.pieces(format, &dims).into_iter().map(|piece| (piece.name.into_owned(), piece.shape)).collect()
    };
    let named = |pieces: &[(&str, &[usize])]| -> Vec<(String, Vec<usize>)> {
        pieces.iter().map(|(name, shape)| (name.to_string(), shape.to_vec())).collect()
    };
    assert_eq!(tensor.shape(&dims), [20, 6]);
    assert_eq!(pieces(NamingScheme::OpenAi), named(&[("attn.qkv.weight", &[20, 6])]));
    let heads: [(&str, &[usize]); 3] = [("q.weight", &[12, 6]), ("k.weight", &[4, 6]), ("v.weight", &[4, 6])];
    assert_eq!(pieces(NamingScheme::HuggingFace), named(&heads));
    assert_eq!(pieces(NamingScheme::Gguf), named(&[("qkv.weight", &[6, 20])]));
    assert_eq!((tensor.cut, tensor.draw), (Sharding::HeadRows, Draw::Around { centre: 1.0, reach: 0.5 }));
}

#[test]
fn a_file_says_what_dimensions_are_called_and_what_they_may_be() {
    let family = read(QKV).expect("it is right");
    let dim = |name| family.dim(name).expect("the file has it");
    let hidden_size = dim("hidden_size");
    assert_eq!((hidden_size.min, hidden_size.max, hidden_size.json.len(), hidden_size.gguf.len()), (1, 100, 1, 2));
    assert_eq!((dim("head_dim").min, dim("num_key_value_heads").null), (2, Some(1)));
    assert_eq!((family.numbers[0].above, family.numbers[0].default), (1.0, None));
    assert_eq!((family.shapes[0].name.as_str(), family.shapes[0].values["head_dim"]), ("tiny", 4.0));
    assert!(matches!(&family.expected_in_json["hidden_act"], Expected::Text(text) if text == "silu"));
    assert!(matches!(&family.expected_in_gguf["attention.value_length"], Expected::Dims(_)));
}

#[test]
fn defaults_and_statements_are_read() {
    let family = read(QKV).expect("it is right");
    let dims = scope([("hidden_size", 6), ("head_dim", 4), ("num_attention_heads", 3), ("num_key_value_heads", 1)]);
    let default = |name| family.dim(name).and_then(|dim| dim.default.as_ref()).map(|default| default.whole(&dims));
    assert_eq!([default("vocab_size"), default("num_hidden_layers")], [Some(Ok(5)), Some(Ok(2))]);
    let statements = family.forward.statements(&dims, 1);
    let said: Vec<String> =
        statements.iter().map(|s| format!("{} {:?} {:?} {}", s.op, s.targets, s.residual, s.place)).collect();
    assert_eq!(said, ["linear [\"h\"] None small.toml:52", "attention [\"x\"] Some(\"x\") small.toml:53",]);
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (from, to, message) in [
        ("layer = true", "layers = true", "26: could not read the family: unknown field `layers`"),
        ("name = \"small\"", "", "1: could not read the family: missing field `name`"),
        (
            "\"small\"",
            "\"sm\\u001ball\"",
            "2: `name`: expected letters, digits, `-`, `_` and `.`, found \"sm\\u{1b}all\"",
        ),
        ("= true", "= maybe", "26: could not read the family: "),
        ("\"head rows\"", "\"heads\"", "31: could not read the family: unknown variant `heads`"),
        ("\"hidden_size\"]", "\"hidden\"]", "27: `hidden`: expected one of head_dim, hidden_size, "),
        ("* head_dim\", \"hidden_size\"]", "/ 2\"]", "27: could not evaluate `(num_attention_heads + "),
        ("\"k.weight\", ", "", "28: `attn.qkv.weight`: expected 3 names, as `stack` has numbers of rows, found 2"),
        ("[\"q.weight\", \"k.weight\", \"v.weight\"]", "3", "28: could not read the family: expected a name, a"),
        (
            "[\"(num_attention_heads + 2 * num_key_value_heads) * head_dim\", \"hidden_size\"]",
            "[\"hidden_size\"]",
            "29: `attn.qkv.weight`: expected two dimensions to swap, found one",
        ),
        ("reach = 0.5", "reach = 0.0", "32: `attn.qkv.weight`: expected `reach` above 0, with `centre` or"),
        ("centre = 1.0", "deviation = 1.0", "32: `attn.qkv.weight`: expected `reach` above 0"),
        (
            "stack = [",
            "stack = \"by turns\" # [",
            "30: `attn.qkv.weight`: expected a list of numbers of rows, or \"in turn\", found \"by turns\"",
        ),
        ("cut   =", "experts = true\ncut =", "27: `attn.qkv.weight`: expected three dimensions of `experts`, found 2"),
        ("min = 2, max = 100", "min = 2, max = 1", "6: `head_dim`: expected a range from 0 or more to less than 2^31"),
        ("null = 1", "null = 0", "8: `num_key_value_heads`: expected a `null` in its range, found 0"),
        ("above = 1.0", "above = \"1\"", "11: could not read the family: "),
        ("above = 1.0", "above = inf", "11: `rope_theta`: expected an `above` that is a number, found inf"),
        ("above = 1.0", "above = 1.0, default = 1", "11: `rope_theta`: expected a `default` above 1, found 1"),
        (
            "rope_theta = { above",
            "head_dim = { above",
            "11: `head_dim`: expected a name that no dimension has, found it a second time",
        ),
        (
            "\"head_dim\" }",
            "true }",
            "15: `attention.value_length`: expected a number, or an expression in quotes, found true",
        ),
        ("\"head_dim\" }", "\"depth\" }", "15: `depth`: expected one of head_dim, "),
        ("rope_theta          = 10000.0", "", "17: `tiny`: expected `rope_theta`, found none"),
        ("rope_theta          =", "rope_thota =", "17: `tiny`: expected `rope_theta`, found none"),
        (
            "rope_theta          =",
            "wide = 3\nrope_theta =",
            "22: `wide`: expected a dimension or a number of the family",
        ),
        ("= 6", "= 6.5", "18: `hidden_size`: expected a whole number from 1 to 100, found 6.5"),
        ("head_dim            = 4", "head_dim = 1", "19: `head_dim`: expected a whole number from 2 to 100, found 1"),
        ("= 10000.0", "= 1.0", "22: `rope_theta`: expected a number above 1, found 1"),
        ("= 10000.0", "= nan", "22: `rope_theta`: expected a number above 1, found NaN"),
        (
            "cut   =",
            "offset = { hf = 1.0 }\ncut =",
            "31: `attn.qkv.weight`: expected numbers, of a tensor of one dimension, found others",
        ),
        (
            "cut   =",
            "pairs = { hf = [\"o.weight\"], rows = \"head_dim\" }\ncut =",
            "31: `attn.qkv.weight`: expected names that `hf` has, found `o.weight`",
        ),
        (
            "[expect]",
            "scale = { root = \"head_dim\", default = 1.0 }\n[expect]",
            "13: `scale`: expected `root`, with `over` or without, alone, found something else",
        ),
        ("[expect]", "scale = { over = 2 }\n[expect]", "13: `scale`: expected `root`, with `over` or without, alone"),
        ("[expect]", "scale = { root = \"depth\" }\n[expect]", "13: `depth`: expected one of head_dim, "),
        ("dim   = \"head_dim\"", "dim = \"depth\"", "48: `depth`: expected one of head_dim, "),
        ("[forward]", "scaling = \"linear\"\n[forward]", "46: `rope`: expected `scaling = \"linear\"` with `factor`, "),
        (
            "[forward]",
            "[ropes.x]\ntheta = \"rope_theta\"\ndim = \"head_dim\"\n[forward]",
            "50: `x`: expected a name of its own, found one that is taken",
        ),
        (
            "window = 0)",
            "window = 0, cos_sin = near)",
            "53: `near`: expected a tensor of a layer, a dimension, or what",
        ),
    ] {
        assert!(QKV.contains(from), "{from}");
        let error = read(&QKV.replacen(from, to, 1)).expect_err(message);
        assert!(error.to_string().starts_with(&format!("small.toml:{message}")), "{error}");
        assert!(error.hint().is_some());
    }
    let begin = QKV.find("[[tensor]]").expect("it has one");
    let tensor = &QKV[begin..QKV.find("[dims.vocab_size]").expect("it is behind it")];
    let with = |tensor: &str| QKV.replacen("[dims.vocab_size]", &format!("{tensor}[dims.vocab_size]"), 1);
    let error = read(&with(tensor)).expect_err("the same name").to_string();
    assert!(error.starts_with("small.toml:35: `attn.qkv.weight`: expected a name that no other tensor"), "{error}");
    let other = tensor.replacen("attn.qkv", "attn.other", 1);
    let error = read(&with(&other)).expect_err("the same stored names").to_string();
    let message =
        "small.toml:38: `attn.other.weight`: expected stored names that no other tensor has, found `q.weight`";
    assert!(error.starts_with(message), "{error}");
    let other = other.replacen("hf    = ", "hf    = \"other\" #", 1).replacen("gguf  = ", "openai = \"qkv\" #", 1);
    let uses_both = with(&other).replacen("h = linear(x, attn.qkv)", "h = linear(linear(x, attn.qkv), attn.other)", 1);
    read(&uses_both).expect("all names differ");
    let without = QKV.lines().filter(|line| !line.starts_with("stack")).collect::<Vec<_>>().join("\n");
    let error = read(&without).expect_err("no stack").to_string();
    assert!(error.starts_with("small.toml:28: `attn.qkv.weight`: expected `stack`, which says how"), "{error}");
}
