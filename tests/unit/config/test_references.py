from __future__ import annotations

import os
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config import references
from spark_kafka_sink.config.config_def import Password
from spark_kafka_sink.config.producer_config import PRODUCER_CONFIG_DEF, ProducerConfig
from spark_kafka_sink.config.references import has_reference, resolve_references
from spark_kafka_sink.config.security_settings import REFERENCE_SETTINGS
from spark_kafka_sink.config.sink_options import SinkOptions
from spark_kafka_sink.display import printable
from spark_kafka_sink.errors import ConfigError


def resolved(value):
    return resolve_references({"a.b": value}).settings["a.b"]


def refusal(value):
    with pytest.raises(ConfigError) as caught:
        resolve_references({"a.b": value}, "kafka.")
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


def config(**settings):
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ProducerConfig.from_mapping({"bootstrap.servers": "localhost:9092", **named})


def config_error(**settings):
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    return str(caught.value)


@pytest.fixture
def secrets(tmp_path, monkeypatch):
    """Write secrets to files in a directory and to an environment variable."""
    (tmp_path / "password").write_bytes(b"from file\n")
    (tmp_path / "windows").write_bytes(b"from file\r\n")
    (tmp_path / "all.properties").write_text("# Secrets\nuser=ann\npass.word = h\\u00e4\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"a" * (2**20 + 1))
    (tmp_path / "largest").write_bytes(b"a" * 2**20)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken.properties").write_text("a=\\uhunter2")
    monkeypatch.setenv("SECRET", "from env")
    return tmp_path


def test_an_environment_variable_is_resolved(secrets):
    """`${env:NAME}` is replaced by the variable's value."""
    assert "from env" == resolved("${env:SECRET}")


@pytest.mark.parametrize("name", ["password", "windows"])
def test_a_file_is_resolved(secrets, name):
    """`${file:/path}` is replaced by the file's content without its final newline."""
    assert "from file" == resolved(f"${{file:{secrets}/{name}}}")


@pytest.mark.parametrize(("key", "expected"), [("user", "ann"), ("pass.word", "hä")])
def test_a_key_of_a_properties_file_is_resolved(secrets, key, expected):
    """`${file:/path:key}` is replaced by the key's value, as in FileConfigProvider."""
    assert expected == resolved(f"${{file:{secrets}/all.properties:{key}}}")


def test_a_file_in_a_directory_is_resolved(secrets):
    """`${dir:/path:file}` is replaced by the content of that file in the directory."""
    assert "from file" == resolved(f"${{dir:{secrets}:password}}")


def test_references_may_be_anywhere_in_a_value(secrets):
    """Several references in a value are replaced, and the text around them is kept."""
    assert "user='ann' password='from env'" == resolved(
        f"user='${{file:{secrets}/all.properties:user}}' password='${{env:SECRET}}'"
    )


def test_resolved_values_are_not_searched_for_references(monkeypatch):
    """The value of a reference is not searched for further references."""
    monkeypatch.setenv("SECRET", "${env:HOME}")
    assert "${env:HOME}" == resolved("${env:SECRET}")


def test_lists_and_passwords_may_contain_references(secrets):
    """References in the items of a list and in a Password are replaced."""
    assert ["a", "from env"] == resolved(["a", "${env:SECRET}"])
    assert Password("from env") == resolved(Password("${env:SECRET}"))


@given(st.text(st.sampled_from("${}:ab"), max_size=14))
def test_references_are_found_as_by_kafkas_pattern(text):
    """The search in one pass finds the same references as Kafka's backtracking pattern."""
    pattern = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")
    assert [(*it.span(), *it.groups()) for it in pattern.finditer(text)] == [
        tuple(it) for it in references._references(text)
    ]


@pytest.mark.parametrize(
    "text", ["${" + ":" * 10**6, "${:" * 10**6, "${" * 10**6 + "}", "${a" * 10**6 + "}" * 10**6]
)
def test_any_text_is_searched_in_linear_time(text):
    """A megabyte of text that resembles references is searched in linear time."""
    assert not has_reference(text)
    assert text == resolved(text)


@pytest.mark.parametrize("value", ["", "$", "${SECRET}", "$env:SECRET", "{env:SECRET}", 5, None])
def test_values_without_references_are_unchanged(value):
    """A value without references is not changed."""
    assert (False, value) == (has_reference(value), resolved(value))


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        (
            "${env:NO_SUCH_VARIABLE}",
            (
                "the environment variable is not set. Under Spark, set it before Spark starts: "
                "Python processes on the driver inherit the environment of its JVM and do not see "
                "later changes to os.environ. For executors, set "
                "spark.executorEnv.NO_SUCH_VARIABLE"
            ),
        ),
        ("${env:a:SECRET}", "write ${env:NAME}, without a path"),
        ("${file:DIR/none}", "the file cannot be read: No such file or directory"),
        ("${file:DIR}", "the file cannot be read: it is not a regular file"),
        ("${file:DIR/none:key}", "the file cannot be read: No such file or directory"),
        ("${file:DIR/all.properties:none}", "the file has no such key"),
        ("${file:DIR/binary}", "the file is not text in UTF-8"),
        (
            "${file:DIR/broken.properties:a}",
            (
                "the file is not a valid .properties file: "
                "a \\u is not followed by four hexadecimal digits"
            ),
        ),
        ("${file:\0}", "the file cannot be read: it is not a valid path"),
        ("${file:/dev/zero}", "the file cannot be read: it is not a regular file"),
        ("${file:/dev/zero:key}", "the file cannot be read: it is not a regular file"),
        ("${dir:/dev:zero}", "the file cannot be read: it is not a regular file"),
        ("${file:DIR/pipe}", "the file cannot be read: it is not a regular file"),
        ("${file:DIR/large}", "the file cannot be read: it is larger than 1048576 bytes"),
        ("${dir:DIR}", "write ${dir:/path:file}"),
        (
            "${dir:DIR/sub:../password}",
            "the part after the colon must be the name of a file, without a directory",
        ),
        ("${dir:DIR:..}", "the file cannot be read: it is not a regular file"),
        ("${dir:DIR:none}", "the file cannot be read: No such file or directory"),
        (
            "${vault:a:b}",
            (
                "there is no provider 'vault'; use ${env:NAME}, ${file:/path}, "
                "${file:/path:key} or ${dir:/path:file}"
            ),
        ),
    ],
)
def test_an_unresolvable_reference_is_an_error(secrets, reference, reason):
    """The error for an unresolvable reference names the setting and reason but no content."""
    written = reference.replace("DIR", str(secrets))
    shown = printable(written)
    assert f"kafka.a.b: {shown} cannot be resolved in this process: {reason}" == refusal(
        f"secret ${{env:SECRET}} {written}"
    )


@pytest.mark.parametrize(
    ("begin", "form"),
    [
        ("${env:", "${env:NAME}"),
        ("${file:", "${file:/path} or ${file:/path:key}"),
        ("${dir:", "${dir:/path:file}"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "a{}", "${{env:SECRET}} {}", "${{{}", "{}SECRET hunter2"])
def test_a_reference_without_its_closing_brace_is_an_error(secrets, begin, form, around):
    """A reference without a closing brace is an error that does not show the following text."""
    value = around.format(begin)
    expected = f"the reference that begins with {begin} has no closing brace; write {form}"
    for written in (value, ["a", value], Password(value)):
        assert f"kafka.a.b: {expected}" == refusal(written)
    assert f"sasl.jaas.config: {expected}" == config_error(sasl_jaas_config=value)


@pytest.mark.parametrize("value", ["${", "$${", "${other", "${vault:a", "${ env:A", "${ENV:A"])
def test_text_unlike_a_known_reference_is_unchanged(value):
    """Text that does not begin like a known reference is not changed, as in Java."""
    assert (False, value) == (has_reference(value), resolved(value))


def test_a_referenced_file_may_have_1_mib(secrets):
    """A referenced file may have up to 1 MiB."""
    assert "a" * 2**20 == resolved(f"${{file:{secrets}/largest}}")


def test_references_are_resolved_before_values_are_parsed(monkeypatch):
    """A secret, or the file that holds one, may come from a reference, and is trimmed."""
    monkeypatch.setenv("PASSWORD", " secret ")
    monkeypatch.setenv("STORE", "/store")
    security = config(
        security_protocol="SSL",
        ssl_truststore_location="${env:STORE}",
        ssl_truststore_password="${env:PASSWORD}",  # noqa: S106
    ).security
    assert ("/store", Password("secret")) == (
        security.ssl_truststore_location,
        security.ssl_truststore_password,
    )


@pytest.mark.parametrize(
    "name", [key.name for key in PRODUCER_CONFIG_DEF if key.name not in REFERENCE_SETTINGS]
)
@pytest.mark.parametrize(
    "reference", ["${file:/etc/passwd}", "a,${env:SECRET}", "${env:UNSET}", "${env:SECRET"]
)
def test_references_are_rejected_in_other_settings(name, reference):
    """A reference is an error in a setting that holds no secret."""
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping({"bootstrap.servers": "a:1", name: reference}, prefix="kafka.")
    assert (
        f"kafka.{name} does not accept ${{}} references, which are for secrets and for files with "
        "secrets: set the value itself"
    ) == str(caught.value)


def test_only_secrets_and_files_that_hold_them_accept_references():
    """Exactly these settings accept references."""
    assert {
        "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
    } == REFERENCE_SETTINGS


@pytest.mark.parametrize("name", sorted(REFERENCE_SETTINGS))
def test_the_error_says_that_a_reference_is_empty(name, monkeypatch):
    """The error for an empty value may say so, since emptiness is not a secret."""
    monkeypatch.setenv("EMPTY", " ")
    assert f"{name} must not be empty" == config_error(
        **{"security_protocol": "SASL_SSL", name: "${env:EMPTY}"}
    )


def test_the_repr_does_not_show_resolved_values(secrets):
    """The repr shows all settings except those that came from references."""
    shown = repr(
        config(
            linger_ms=17,
            security_protocol="ssl",
            ssl_truststore_location="${env:SECRET}",
        )
    )
    assert "from env" not in shown
    assert "ssl_truststore_location=[hidden]" in shown
    assert "ssl_keystore_location=None" in shown
    assert "linger_ms=17" in shown
    assert shown.startswith("ProducerConfig(bootstrap_servers=(('localhost', 9092),), acks=-1, ")


def test_resolved_secrets_are_not_pickled(monkeypatch):
    """A configuration is pickled with its references, which are resolved on arrival."""
    monkeypatch.setenv("NAME", "the driver's")
    settings = config(security_protocol="SSL", ssl_truststore_location="${env:NAME}", acks="1")
    pickled = pickle.dumps(settings)
    monkeypatch.setenv("NAME", "the task's")
    arrived = pickle.loads(pickled)  # noqa: S301 -- our own bytes
    assert b"the driver's" not in pickled
    assert ("the task's", 1) == (arrived.security.ssl_truststore_location, arrived.acks)
    assert "the task's" not in repr(arrived)


def test_a_reference_that_cannot_be_resolved_in_a_task_is_an_error(monkeypatch):
    """If a reference has no value on arrival, the error names the option as it was given."""
    monkeypatch.setenv("NAME", "x")
    options = SinkOptions.from_mapping(
        {
            "kafka.bootstrap.servers": "a:1",
            "kafka.security.protocol": "SSL",
            "kafka.ssl.key.password": "${env:NAME}",
            "kafka.ssl.keystore.location": "/store",
        }
    )
    pickled = pickle.dumps(options.producer)
    monkeypatch.delenv("NAME")
    with pytest.raises(ConfigError) as caught:
        pickle.loads(pickled)  # noqa: S301 -- our own bytes
    assert str(caught.value).startswith(
        "kafka.ssl.key.password: ${env:NAME} cannot be resolved in this process: the environment "
        "variable is not set. "
    )
    assert str(caught.value).endswith("set spark.executorEnv.NAME")


def test_references_in_unsupported_settings_are_not_resolved():
    """A reference in an unsupported setting is not resolved before the setting is rejected."""
    with pytest.raises(ConfigError, match=r"^ssl\.provider is not supported: OpenSSL does this"):
        config(ssl_provider="${env:NO_SUCH_VARIABLE}")
