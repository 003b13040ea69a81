//! Templates of several ops.

use std::fs;

use kernel::target::Language;
use kernel::template::{Params, Problem};

use super::{broken, fixtures, fused, host, library, library_under, rendered, scalars};

#[test]
fn fused_ops_share_the_tensor_between_them() {
    let kernel = rendered(&library(), "rmsnorm+linear/naive", &fused(), &Params::new(), &host()).expect("renders");
    assert_eq!(
        kernel.abi(),
        "x:f32:read scale:f32:read n_tokens:u32 weight:bf16:read bias:bf16:read y:f32:write normed:f32:read_write"
    );
    assert_eq!((kernel.label.as_str(), kernel.entry.as_str()), ("rmsnorm+linear/naive", "rmsnorm_linear_naive"));
    // x may be the y of rmsnorm, which vanished; the y of linear is another tensor.
    assert!(kernel.args[0].may_alias.is_none());
    assert_eq!(kernel.workspace[0].len_elements(&scalars(2)), Ok(96));
    let mut apart = fused();
    apart.dims.insert("row_size".into(), 64);
    let error = rendered(&library(), "rmsnorm+linear/naive", &apart, &Params::new(), &host()).expect_err("64 and 48");
    let error = error.to_string();
    assert!(error.ends_with("`in_features`, which is `row_size` of the op before: expected 64, found 48"), "{error}");
}

/// The fused template of the fixtures, with one more line of front matter.
fn fused_with(line: &str) -> String {
    let text = fs::read_to_string(fixtures().join("rmsnorm+linear/naive.c.j2")).expect("a fixture");
    text.replacen("{#\n", &format!("{{#\n{line}\n"), 1)
}

#[test]
fn a_fused_template_may_keep_what_others_read() {
    let name = "rmsnorm+linear/keeping.c.j2";
    let (_folder, library) = library_under(&[(name, &fused_with("keeps = [\"rmsnorm.y\"]"))]);
    let kernel = rendered(&library, "rmsnorm+linear/keeping", &fused(), &Params::new(), &host()).expect("renders");
    assert!(kernel.abi().contains("y:f32:write rmsnorm_y:f32:write normed:f32:read_write"), "{}", kernel.abi());
    assert_eq!(kernel.args.last().expect("kept").len_elements(&scalars(2)), Ok(96));

    let needed = Problem { keeps: ["rmsnorm.y".to_owned()].into(), ..fused() };
    let candidates = library.candidates(&needed, &host()).expect("nothing is broken");
    assert_eq!(candidates.iter().map(|template| template.label()).collect::<Vec<_>>(), ["rmsnorm+linear/keeping"]);
    let error = rendered(&library, "rmsnorm+linear/naive", &needed, &Params::new(), &host()).expect_err("it is lost");
    assert!(error.to_string().ends_with("does not keep `rmsnorm.y`, which others read"), "{error}");

    let error = broken(&[(name, &fused_with("keeps = [\"linear.y\"]"))], name);
    assert_eq!(error, format!("{name}:2: keeps: expected a tensor between its ops: rmsnorm.y, found `linear.y`"));
}

#[test]
fn a_run_of_ops_may_have_tests_of_its_own() {
    let tests = "[[tests]]\ndims = { row_size = 8, in_features = 8, out_features = 5 }\nconstants = { eps = 1e-5 }\n\
                 flags = { has_bias = true }\nscalars = { n_tokens = [1, 9] }\n";
    let library = library_under(&[("rmsnorm+linear/tests.toml", tests)]).1;
    let template = library.template("rmsnorm+linear/naive", Language::C).expect("it is right");
    let [test] = template.signature.tests().try_into().expect("one test");
    assert_eq!((test.dims["out_features"], test.scalars["n_tokens"].values()), (5, &[1.0, 9.0][..]));

    let lacking = tests.replace("row_size = 8, ", "");
    let error = broken(&[("rmsnorm+linear/tests.toml", &lacking)], "rmsnorm+linear/naive.c.j2");
    assert_eq!(
        error,
        "rmsnorm+linear/tests.toml:1: a test's dims: expected {in_features, out_features, row_size}, found {in_features, out_features}"
    );
}

#[test]
fn ops_that_do_not_meet_cannot_be_fused() {
    let file = "linear+rmsnorm/no.c.j2";
    let library = library_under(&[(file, "{# op = [\"linear\", \"rmsnorm\"] #}")]).1;
    assert!(library.broken()[0].error.to_string().contains("front matter"), "the ops themselves do meet");
    let lone = "summary = ''\nargs = [{ name = 'n', dtype = 'u32' }]\n[numerics]\nf32 = { rtol = 0, atol = 0 }\nbf16 = { rtol = 0, atol = 0 }\n";
    let error = broken(&[("lone/op.toml", lone), ("linear+lone/no.c.j2", "{# #}")], "linear+lone/no.c.j2");
    assert_eq!(error, "lone/op.toml: could not fuse linear and lone: `lone` does not begin with a tensor");
}
