"""Allow-lists in environment variables, and where they are enforced."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.config.allow_lists import (
    LOGIN_MODULES,
    PATHS,
    PLUGINS,
    PROVIDERS,
    URLS,
    VARIABLES,
    AllowLists,
    NotAllowedError,
)
from spark_kafka_sink.config.plugin_reference import REPORTERS, TOKEN_SOURCES, PluginReference
from spark_kafka_sink.config.producer_config import ProducerConfig
from spark_kafka_sink.config.references import resolve_references
from spark_kafka_sink.errors import ConfigError
from spark_kafka_sink.network.authentication import connection_security
from spark_kafka_sink.network.authentication.connection_security import read_security
from spark_kafka_sink.network.tls_contexts import TlsContexts
from spark_kafka_sink.security.kerberos import KRB5_LOGIN_MODULE
from spark_kafka_sink.security.tls import TlsSettings
from tests.support.security.secured import MODULES, sasl

OAUTH = MODULES["OAUTHBEARER"]
URL = "sasl.oauthbearer.token.endpoint.url"
BEARER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
CREDENTIALS = {
    "sasl.oauthbearer.client.credentials.client.id": "an id",
    "sasl.oauthbearer.client.credentials.client.secret": "a secret",
}
#: Each check, with a value to check.
CHECKS = [
    (PROVIDERS, "check_provider", "file"),
    (VARIABLES, "check_variable", "SECRET"),
    (PATHS, "check_path", "/run/secrets/password"),
    (PATHS, "check_ticket_cache", "FILE:/run/cache"),
    (URLS, "check_url", "https://idp.example/token"),
    (LOGIN_MODULES, "check_login_module", OAUTH),
    (PLUGINS, "check_plugin", "package.module:attribute"),
]


def allowed(environment, check, value):
    try:
        getattr(AllowLists(environment), check)(value)
    except NotAllowedError:
        return False
    return True


def security_problem(*parts):
    settings = {name: value for part in parts for name, value in part.items()}
    made = ProducerConfig.from_mapping({"bootstrap.servers": "a:1", **settings}, prefix="kafka.")
    with pytest.raises(ConfigError) as caught:
        read_security(made.security)
    return str(caught.value)


@pytest.mark.parametrize(("variable", "check", "value"), CHECKS)
def test_an_unset_variable_restricts_nothing(variable, check, value):
    """A variable that is not set restricts nothing, whatever the others contain."""
    others = {name: "" for name, _, _ in CHECKS if name != variable}
    assert allowed(others, check, value)


@pytest.mark.parametrize("text", ["", " , ", "none", " none "])
@pytest.mark.parametrize(("variable", "check", "value"), CHECKS)
def test_an_empty_list_allows_nothing(variable, check, value, text):
    """A variable that is empty or `none` allows nothing."""
    assert not allowed({variable: text}, check, value)


@pytest.mark.parametrize(("variable", "check", "value"), CHECKS)
def test_only_listed_values_are_allowed(variable, check, value):
    """Only values that equal a whole entry are allowed."""
    listed = value.removeprefix("FILE:")
    text = listed if variable == VARIABLES else f"/other, {listed}"
    assert allowed({variable: text}, check, value)
    assert not allowed({variable: text}, check, f"{value}x")
    assert not allowed({variable: text}, check, value[:-1])


def test_kafkas_provider_class_names_are_accepted():
    """The names of Kafka's provider classes stand for the corresponding providers here."""
    package = "org.apache.kafka.common.config.provider"
    listed = {PROVIDERS: f"{package}.EnvVarConfigProvider,{package}.DirectoryConfigProvider"}
    assert [True, False, True] == [
        allowed(listed, "check_provider", name) for name in ("env", "file", "dir")
    ]


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("KAFKA_.*", "KAFKA_PASSWORD", True),
        ("KAFKA_.*", "AWS_SECRET_ACCESS_KEY", False),
        ("KAFKA", "KAFKA_PASSWORD", False),
        ("KAFKA_.*", "MY_KAFKA_PASSWORD", False),
        ("(", "KAFKA_PASSWORD", False),
        ("none", "none", False),
    ],
)
def test_the_pattern_must_match_the_whole_variable_name(pattern, name, expected):
    """The pattern must be valid and match the whole name."""
    assert expected == allowed({VARIABLES: pattern}, "check_variable", name)


def test_a_directory_allows_its_content(tmp_path):
    """A listed directory allows its content, after `..` and symbolic links are resolved."""
    inside, outside = tmp_path / "secrets", tmp_path / "secrets-of-others"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    (outside / "link").symlink_to(inside)
    listed = {PATHS: f"/nowhere,{inside}"}
    for path in (inside / "password", inside / "a" / "b", outside / "link" / "password"):
        assert allowed(listed, "check_path", str(path))
    for path in (
        outside / "password",
        inside / ".." / "secrets-of-others" / "password",
        inside / "link" / "password",
        tmp_path,
        "password",
    ):
        assert not allowed(listed, "check_path", str(path))


@given(st.lists(st.sampled_from(["..", ".", "a", "secrets", ""]), max_size=8))
def test_no_path_can_escape_an_allowed_directory(parts):
    """However a path is written, only files in the listed directory are allowed."""
    path = "/".join(["/nowhere/secrets", *parts])
    depth: list[str] = []
    for part in path.split("/"):
        if part == "..":
            depth = depth[:-1]
        elif part not in {"", "."}:
            depth.append(part)
    is_inside = depth[:2] == ["nowhere", "secrets"]
    assert is_inside == allowed({PATHS: "/nowhere/secrets"}, "check_path", path)


@pytest.mark.parametrize("listed", ["secrets", ".", "/nowhere,secrets"])
def test_a_list_with_a_relative_path_allows_nothing(listed):
    """A list with a relative path allows nothing, since its meaning is ambiguous."""
    assert not allowed({PATHS: listed}, "check_path", "/nowhere/secrets")


@pytest.mark.parametrize("name", ["KEYRING:persistent", "DIR:/run", "cache", "MEMORY:", "KCM:"])
def test_a_ticket_cache_must_be_a_file_if_paths_are_restricted(name):
    """With a list of paths, only ticket caches in files are allowed."""
    assert not allowed({PATHS: "/"}, "check_ticket_cache", name)
    assert allowed({}, "check_ticket_cache", name)


# --- where it is enforced


@pytest.mark.parametrize(
    ("variable", "listed", "reference"),
    [
        (PROVIDERS, "env", "${file:/etc/hostname}"),
        (PROVIDERS, "file,dir", "${env:HOME}"),
        (PROVIDERS, "none", "${dir:/etc:hostname}"),
        (VARIABLES, "KAFKA_.*", "${env:HOME}"),
        (PATHS, "/nowhere", "${file:/etc/hostname}"),
        (PATHS, "/nowhere", "${file:/nowhere/../etc/hostname:key}"),
        (PATHS, "/nowhere", "${dir:/etc:hostname}"),
    ],
)
def test_forbidden_references_are_rejected(monkeypatch, variable, listed, reference):
    """The error for a forbidden reference names the reference and the variable."""
    monkeypatch.setenv(variable, listed)
    with pytest.raises(ConfigError) as caught:
        resolve_references({"ssl.key.password": reference}, "kafka.")
    assert str(caught.value).startswith(f"kafka.ssl.key.password: {reference} cannot be resolved")
    assert str(caught.value).endswith(f"{variable} does not allow it in this process")


def test_forbidden_key_stores_are_rejected(monkeypatch):
    """A key store outside the listed paths is not read."""
    monkeypatch.setenv(PATHS, "/nowhere")
    with pytest.raises(ConfigError) as caught:
        TlsContexts(TlsSettings(truststore_location="/etc/hostname"), "kafka.").current()
    assert (
        f"kafka.ssl.truststore.location /etc/hostname cannot be read: {PATHS} does not allow it in "
        "this process"
    ) == str(caught.value)


@pytest.mark.parametrize("kind", [REPORTERS, TOKEN_SOURCES])
def test_a_forbidden_plug_in_is_not_imported(monkeypatch, kind, tmp_path):
    """A forbidden plug-in is not imported, neither when parsed nor when loaded."""
    (tmp_path / "planted_plugin.py").write_text("def make(): ...")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS, "mine:reporter")
    with pytest.raises(NotAllowedError):
        kind.read("planted_plugin:make")
    with pytest.raises(ConfigError, match=f"^a.setting: .*{PLUGINS} does not allow it in this "):
        PluginReference(import_path="planted_plugin:make").load("a.setting")
    assert "planted_plugin" not in sys.modules
    assert PluginReference(import_path="mine:reporter") == kind.read("mine:reporter")
    assert PluginReference(built_in=kind.names[0]) == kind.read(kind.names[0])
    assert PluginReference(target=print) == kind.read(print)


def test_the_error_for_a_forbidden_plug_in_names_its_setting(monkeypatch):
    """The error for a forbidden plug-in names setting, plug-in and variable."""
    monkeypatch.setenv(PLUGINS, "none")
    settings = {"bootstrap.servers": "a:1", "metric.reporters": "os:system"}
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping(settings, prefix="kafka.")
    assert (
        f"kafka.metric.reporters 'os:system' cannot be imported: {PLUGINS} does not allow it in "
        "this process"
    ) == str(caught.value)


def test_forbidden_token_endpoints_are_rejected(monkeypatch):
    """A client's secret is never sent to an endpoint that is not listed."""
    monkeypatch.setenv(URLS, "https://idp.example/token")
    elsewhere = {URL: "https://idp.example/token?key=planted"}
    assert f"kafka.{URL}: {URLS} does not allow it in this process" == security_problem(
        BEARER, CREDENTIALS, elsewhere
    )
    settings = {"bootstrap.servers": "a:1", **BEARER, **CREDENTIALS}
    read_security(
        ProducerConfig.from_mapping({**settings, URL: "https://idp.example/token"}).security
    )


def test_a_token_file_url_must_be_in_the_list_of_urls(monkeypatch):
    """`file:` endpoints must be in the list of URLs, as in Java."""
    endpoint = {URL: "file:///var/run/token"}
    monkeypatch.setenv(URLS, "https://idp.example/token")
    assert f"kafka.{URL}: {URLS} does not allow it in this process" == security_problem(
        BEARER, endpoint
    )
    monkeypatch.setenv(URLS, "file:///var/run/token")
    settings = {"bootstrap.servers": "a:1", **BEARER, **endpoint}
    read_security(ProducerConfig.from_mapping(settings).security)


@pytest.mark.parametrize(
    ("settings", "module"),
    [
        (sasl("PLAIN", "a", "b"), MODULES["PLAIN"]),
        (sasl("SCRAM-SHA-256", "a", "b"), MODULES["SCRAM-SHA-256"]),
        ({**BEARER, URL: "file:///token"}, OAUTH),
        (
            {**BEARER, "sasl.mechanism": "AWS_MSK_IAM"},
            "software.amazon.msk.auth.iam.IAMLoginModule",
        ),
        (
            {**BEARER, "sasl.login.callback.handler.class": "msk_iam"},
            "software.amazon.msk.auth.iam.IAMLoginModule",
        ),
        (
            {
                **BEARER,
                "sasl.mechanism": "GSSAPI",
                "sasl.kerberos.service.name": "kafka",
                "sasl.jaas.config": f"{KRB5_LOGIN_MODULE} required useTicketCache=true;",
            },
            KRB5_LOGIN_MODULE,
        ),
    ],
)
def test_forbidden_login_modules_are_rejected(monkeypatch, settings, module):
    """Each kind of login is checked by the name of Java's login module for it."""
    monkeypatch.setattr(connection_security, "check_gssapi", lambda: None)
    monkeypatch.setenv(LOGIN_MODULES, "com.example.Other")
    assert (
        f"kafka.sasl.jaas.config: {module}: {LOGIN_MODULES} does not allow it in this process"
        == security_problem(settings)
    )
    monkeypatch.setenv(LOGIN_MODULES, f"com.example.Other,{module}")
    made = ProducerConfig.from_mapping({"bootstrap.servers": "a:1", **settings})
    read_security(made.security)


def test_forbidden_ticket_caches_are_rejected(monkeypatch):
    """A ticket cache outside the listed paths is not used."""
    monkeypatch.setenv(PATHS, "/nowhere")
    options = "useTicketCache=true ticketCache='/tmp/krb5cc_0'"
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": f"{KRB5_LOGIN_MODULE} required {options};",
    }
    assert (
        f"kafka.sasl.jaas.config: ticketCache: {PATHS} does not allow it in this process"
        == security_problem(settings)
    )
