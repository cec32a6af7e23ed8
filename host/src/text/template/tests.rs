use super::*;
use minijinja::context;
use proptest::prelude::*;

fn message(role: &str, content: &str) -> Value {
    context! { role, content }
}

fn render(source: &str, context: Value) -> Result<String, TextError> {
    ChatTemplate::new(source)?.render(context, 0)
}

#[test]
fn chat_ml() {
    let template = "\
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\\nBe kind.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
";
    let messages = vec![message("user", " Hi "), message("assistant", "Yes?")];
    assert_eq!(
        render(template, context! { messages, add_generation_prompt => true }).unwrap(),
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n\
         <|im_start|>assistant\n"
    );
}

#[test]
fn headers_dates_and_tools_as_llama_3_writes_them() {
    let template = "\
{{- bos_token }}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if not date is defined %}{%- set date = strftime_now('%d') | length %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{{- 'Date: ' + date | string + '\\n' }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}";
    let tools = vec![context! { name => "f", tags => vec!["<a>"] }];
    let messages = vec![message("user", " Hi ")];
    assert_eq!(
        render(template, context! { messages, tools, bos_token => "<s>" }).unwrap(),
        "<s><|start_header_id|>system<|end_header_id|>\n\nDate: 2\n{\n    \"name\": \"f\",\n    \"tags\": [\n        \"<a>\"\n    ]\n}\n\n\
         <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    );
}

#[test]
fn turns_must_alternate_where_mistral_says_so() {
    let template = "\
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{{- bos_token }}
{%- set ns = namespace(index=0) %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}
        {{- raise_exception('roles must alternate: ' + message['role']) }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
    {%- if message['role'] == 'user' %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\\n\\n' + message['content'] + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + '[/INST]' }}
        {%- endif %}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'].strip() + eos_token }}
    {%- endif %}
{%- endfor %}";
    let prompt = |messages: Vec<Value>| {
        render(
            template,
            context! { messages, bos_token => "<s>", eos_token => "</s>" },
        )
    };
    let turns = vec![
        message("system", "S"),
        message("user", "a"),
        message("assistant", " b "),
        message("user", "c"),
    ];
    assert_eq!(
        prompt(turns).unwrap(),
        "<s>[INST] a[/INST] b</s>[INST] S\n\nc[/INST]"
    );
    let refused = TextError::Request("roles must alternate: user".to_owned());
    assert_eq!(
        prompt(vec![message("user", "a"), message("user", "b")]),
        Err(refused)
    );
}

#[test]
fn roles_are_renamed_as_gemma_does() {
    let template = "\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}";
    let prompt = |messages: Vec<Value>| {
        render(
            template,
            context! { messages, bos_token => "<bos>", add_generation_prompt => true },
        )
    };
    assert_eq!(
        prompt(vec![message("user", "a "), message("assistant", "b")]).unwrap(),
        "<bos><start_of_turn>user\na<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>\n<start_of_turn>model\n"
    );
    let refused = TextError::Request("System role not supported".to_owned());
    assert_eq!(prompt(vec![message("system", "a")]), Err(refused));
}

#[test]
fn what_tool_templates_use() {
    let cases = [
        (
            "{% for m in [1, 2, 3, 4] %}{% if m == 2 %}{% continue %}{% elif m == 4 %}{% break %}{% endif %}{{ m }}{% endfor %}",
            "13",
        ),
        (
            "{% for m in [1, 2, 3][::-1] %}{{ loop.previtem if loop.previtem is defined }}{{ m }} {% endfor %}",
            "3 32 21 ",
        ),
        (
            "{% macro f(x, y='z') -%}{{ x }}{{ y }}{%- endmacro %}{{ f('a') }}{{ f('a', y=1) }}",
            "aza1",
        ),
        (
            "{{ {'b': 1, 'a': none, 'c': true} }} {{ none }} {{ 1 == 1.0 }}",
            "{'b': 1, 'a': None, 'c': True} None True",
        ),
        (
            "{{ ' a\n'.strip() }}{{ 'xay'.strip('xy') }}{{ 'a b'.split(' ')[-1] }}{{ 'ab'.replace('b', 'c') }}{{ 'Ab'.upper() }}",
            "aabacAB",
        ),
        (
            "{{ 'a.b.c'.rsplit('.', 1) }}{{ 'ab'.removeprefix('a') }}{{ 'ab'.removesuffix('b') }}{{ 'ab'.startswith(('x', 'a')) }}",
            "['a.b', 'c']baTrue",
        ),
        (
            "{% for k, v in {'x': 1}.items() %}{{ k }}={{ v }}{% endfor %}{{ {'x': 1}.get('y', 2) }}",
            "x=12",
        ),
        (
            "{{ [{'r': 'u', 'n': 1}, {'r': 's', 'n': 2}] | selectattr('r', 'equalto', 's') | map(attribute='n') | first }}",
            "2",
        ),
        (
            "{{ none is iterable }}{{ 'a' is iterable }}{{ [] is sequence }}{{ {} is mapping }}{{ 'a' is string }}",
            "FalseTrueTrueTrueTrue",
        ),
        (
            "{{ {'a': [1, 'é<']} | tojson }}{{ [] | tojson(indent=2) }}{{ 'é' | tojson(ensure_ascii=True) }}",
            "{\"a\": [1, \"é<\"]}[]\"\\u00e9\"",
        ),
        (
            "{{ [1, {'b': 2, 'a': 3}] | tojson(separators=(',', ':'), sort_keys=true) }}",
            "[1,{\"a\":3,\"b\":2}]",
        ),
        (
            "  {%- generation -%} a {%- endgeneration %}|{% generation %}b{% endgeneration %}",
            "a|b",
        ),
        (
            "{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ missing }}{{ missing is defined }}",
            "a1False",
        ),
        (
            "{{ '%s and %d' | format('a', 2) }} {{ [3, 1] | sort | join(',') }} {{ 'a' ~ 1 }} {{ 'ab' * 2 }}",
            "a and 2 1,3 a1 abab",
        ),
        ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"),
    ];
    for (template, expected) in cases {
        assert_eq!(
            render(template, context! {}).as_deref(),
            Ok(expected),
            "{template}"
        );
    }
}

#[test]
fn a_hostile_template_is_stopped() {
    let operators = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='ab') %}{% for i in range(200) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}",
        "{{ 'x' * 99999999 * 99 }}",
    ];
    for template in operators {
        let result = render(template, context! {});
        assert!(
            matches!(result, Err(TextError::Template(_))),
            "{template}: {result:?}"
        );
    }
    let refused = [
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace() %}{% set ns.ns = ns %}{{ ns | tojson }}",
    ];
    for template in refused {
        assert!(render(template, context! {}).is_err(), "{template}");
    }
}

#[test]
fn nesting_takes_no_stack_that_is_not_there() {
    let each = |body: &str| {
        format!("{{% set n = namespace(a=['a'], b=['a']) %}}{{% for i in range(9999) %}}{body}{{% endfor %}}")
    };
    let nested = each("{% set n.a = [n.a] %}");
    let pair = each("{% set n.a = [n.a] %}{% set n.b = [n.b] %}");
    let sources = [
        nested.clone(),
        nested.clone() + "{{ n.a }}",
        nested + "{{ n.a | tojson }}",
        pair.clone() + "{{ n.a == n.b }}",
        pair + "{{ [n.a, n.b] | sort }}",
        each("{% set n.a = n.a[0:] %}") + "{{ n.a | list }}",
        each("{% set n.a = n.a | map('upper') %}") + "{{ n.a | list }}",
        format!("{{{{ a{} }}}}", ".b".repeat(MAX_SOURCE_BYTES / 2 - 10)),
        format!("{{{{ {}a }}}}", "-".repeat(8_000)),
        format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(5_000)),
        format!("{}{{{{ x }}}}", "{% set x = [x] %}".repeat(3_800)),
    ];
    for source in sources {
        // What it gives doesn't matter; an overflow would end the process.
        drop(render(&source, context! {}));
    }
}

#[test]
fn errors_say_who_must_act() {
    let messages = vec![message("user", "a")];
    let error = |template: &str| render(template, context! { messages => messages.clone() }).unwrap_err();
    assert_eq!(
        error("{{ raise_exception('no ' ~ messages[0].role) }}"),
        TextError::Request("no user".to_owned())
    );
    assert!(matches!(
        error("{{ messages[3].content }}"),
        TextError::Request(_)
    ));
    assert!(matches!(
        error("{{ messages[0].content | nothing }}"),
        TextError::Template(_)
    ));
    let TextError::Template(why) = error("line\n{% for %}") else {
        panic!()
    };
    assert!(why.contains(":2"), "{why}");
    assert!(matches!(
        render(&" ".repeat(MAX_SOURCE_BYTES + 1), context! {}),
        Err(TextError::Template(_))
    ));
}

/// Pieces that make most random texts nearly templates.
fn scraps() -> impl Strategy<Value = String> {
    let scrap = prop_oneof![
        "[ a-z0-9'(){}\\[\\]%|.,+*~=:\\-]{0,6}",
        prop::sample::select(vec![
            "{% for m in messages %}",
            "{% endfor %}",
            "{% if ",
            " %}",
            "{% endif %}",
            "{{ ",
            " }}",
            "m.content",
            "messages",
            "| tojson",
            "| trim",
            "[::-1]",
            "{% set x = x ~ x %}",
            "namespace(",
            "range(9999)",
            ".split('a')",
            "{%- generation %}",
            "{% macro f(x) %}",
            "{% endmacro %}",
            "f(f)",
            "raise_exception('a')",
            "loop.index",
            "{#",
            "#}",
            "\0",
            "* 9999",
            "strftime_now('%')",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(scrap, 0..12).prop_map(|scraps| scraps.concat())
}

#[test]
fn a_tag_whose_two_ends_share_a_sign_does_not_panic() {
    for source in ["{%}", "{{ a }}{%}", "{%} {% generation %}"] {
        fuzz(source.as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn random_templates_neither_panic_nor_run_away(source in scraps()) {
        fuzz(source.as_bytes());
    }

    #[test]
    fn random_bytes_neither_panic_nor_run_away(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        fuzz(&bytes);
    }
}
