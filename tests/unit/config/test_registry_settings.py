"""The settings of a Schema Registry: what is accepted and refused, and that secrets are kept."""

from __future__ import annotations

import pickle

import pytest

from spark_kafka_sink.config.config_def import Password
from spark_kafka_sink.config.registry_settings import (
    REFUSED_REGISTRY,
    REGISTRY_CONFIG_DEF,
    REGISTRY_PREFIX,
    RegistrySettings,
    RegistryUrl,
    registry_options,
)
from spark_kafka_sink.errors import ConfigError

URL = {"url": "https://registry:8081"}


def read(settings, **others):
    """Return the settings as a write in Spark reads them; underscores stand for dots."""
    named = {name.replace("_", "."): value for name, value in others.items()}
    return RegistrySettings.from_mapping({**settings, **named}, prefix=REGISTRY_PREFIX)


def refusal(settings, **others):
    """Return the error of settings that are refused, which shows nothing that was planted."""
    with pytest.raises(ConfigError) as caught:
        read(settings, **others)
    assert "planted" not in str(caught.value)
    return str(caught.value)


def test_a_url_is_all_that_is_required():
    """The defaults are those of Confluent's clients."""
    settings = read(URL)
    assert (RegistryUrl("https://registry:8081"),) == settings.url
    assert (3, 1000, 20_000) == (
        settings.max_retries,
        settings.retries_wait_ms,
        settings.retries_max_wait_ms,
    )
    assert refusal({}).startswith("schema.registry.url is required: ")


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("http://a:1,http://b:2", ["http://a:1", "http://b:2"]),
        (" https://a/path/ , ,HTTPS://b", ["https://a/path", "https://b"]),
        ("http://a,http://a/", ["http://a"]),
        ("http://[::1]:8081", ["http://[::1]:8081"]),
    ],
)
def test_several_urls_are_separated_by_commas(text, addresses):
    """Each counts once, without the slash at its end."""
    assert addresses == [url.address for url in read({"url": text}).url]


def test_a_url_may_contain_user_and_password():
    """They are decoded, belong to their own URL, and are not shown."""
    settings = read({"url": "https://me:planted%2Fa@a,https://b"})
    assert (
        RegistryUrl("https://a", Password("me:planted/a")),
        RegistryUrl("https://b"),
    ) == settings.url
    assert "planted" not in f"{settings} {settings.url}"
    assert "https://a,https://b" in repr(settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("registry:8081", "must be http://host:port or https://host:port"),
        ("mock://planted@a", "must be http://host:port or https://host:port"),
        ("http://", "must be http://host:port or https://host:port"),
        ("http://a:planted", "has a malformed host or port"),
        ("http://a:99999", "has a malformed host or port"),
        ("http://a b", "must not contain spaces"),
        ("http://ä", "must not contain spaces, control characters or non-ASCII"),
        ("http://a?planted", "must end with a path"),
        ("http://a#planted", "must end with a path"),
        ("http://planted@a", "must have user and password as user:password"),
        ("http://planted:a%0a@a", "must have user and password as user:password"),
        ("", "contains no URL"),
        (" , ", "contains no URL"),
        ({"a": "planted"}, "must be a comma-separated list, not [hidden]"),
    ],
)
def test_a_malformed_url_is_refused(text, message):
    """The error does not show it, since it may contain a password."""
    assert refusal({"url": text}).startswith(f"schema.registry.url {message}")


def test_user_and_password_are_those_of_all_urls():
    """The source need not be named."""
    for more in ({}, {"basic.auth.credentials.source": "USER_INFO"}):
        settings = read(
            {"url": "https://a,https://b", "basic.auth.user.info": "me:planted", **more}
        )
        assert [Password("me:planted")] * 2 == [url.user_info for url in settings.url]
        assert "planted" not in repr(settings)


def test_a_token_is_that_of_all_urls():
    """The source need not be named, and the ids of Confluent Cloud are optional."""
    plain = {**URL, "bearer.auth.token": "planted"}
    named = {**plain, "bearer.auth.credentials.source": "STATIC_TOKEN"}
    ids = {"bearer.auth.logical.cluster": "lsrc-1", "bearer.auth.identity.pool.id": "pool-1"}
    for settings in map(read, (plain, named, {**named, **ids})):
        assert Password("planted") == settings.bearer_auth_token
        assert "planted" not in repr(settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"basic.auth.user.info": "planted"},
            "basic.auth.user.info must have user and password as user:password",
        ),
        (
            {"basic.auth.user.info": "me:planted", "bearer.auth.token": "planted"},
            "basic.auth.user.info and bearer.auth.token cannot both be set",
        ),
        (
            {"url": "http://me:planted@a", "basic.auth.user.info": "me:planted"},
            "basic.auth.user.info and user and password in url cannot both be set",
        ),
        (
            {"url": "http://me:planted@a", "bearer.auth.token": "planted"},
            "bearer.auth.token and user and password in url cannot both be set",
        ),
        (
            {"basic.auth.credentials.source": "USER_INFO"},
            "basic.auth.credentials.source=USER_INFO requires basic.auth.user.info",
        ),
        (
            {"basic.auth.credentials.source": "URL"},
            "basic.auth.credentials.source=URL requires user and password in url",
        ),
        (
            {"bearer.auth.credentials.source": "STATIC_TOKEN"},
            "bearer.auth.credentials.source=STATIC_TOKEN requires bearer.auth.token",
        ),
        (
            {"basic.auth.credentials.source": "SASL_INHERIT"},
            "basic.auth.credentials.source=SASL_INHERIT is not supported: the login of the brokers",
        ),
        (
            {"bearer.auth.credentials.source": "OAUTHBEARER"},
            "bearer.auth.credentials.source=OAUTHBEARER is not supported: tokens are not requested",
        ),
        (
            {"bearer.auth.credentials.source": "other"},
            "bearer.auth.credentials.source must be one of: STATIC_TOKEN, not 'other'",
        ),
        (
            {"bearer.auth.token": "planted token"},
            "bearer.auth.token must have only printable ASCII characters",
        ),
        (
            {"bearer.auth.logical.cluster": "lsrc-1"},
            "bearer.auth.logical.cluster requires bearer.auth.token",
        ),
        (
            {"bearer.auth.token": "planted", "bearer.auth.identity.pool.id": "a\tb"},
            "bearer.auth.identity.pool.id must have only printable ASCII characters",
        ),
        ({"bearer.auth.token": ""}, "bearer.auth.token must not be empty"),
        ({"proxy": "https://planted@a"}, "proxy must be http://host:port"),
        ({"proxy": "http://a/planted"}, "proxy must be http://host:port, without a path"),
        ({"request.timeout.ms": 0}, "request.timeout.ms must be at least 1"),
        ({"max.retries": -1}, "max.retries must be at least 0"),
    ],
)
def test_credentials_and_limits_are_checked(settings, message):
    """What contradicts another setting, or would be ignored, is an error that names it."""
    assert refusal({**URL, **settings}).startswith(f"schema.registry.{message}")


def test_a_reason_names_settings_as_the_user_writes_them():
    """Kafka's clients have settings of the same names, so the prefix is a part of the advice."""
    for settings, advice in [
        (
            {"ssl.ca.location": "/ca.pem"},
            (
                "set schema.registry.ssl.truststore.location and "
                "schema.registry.ssl.truststore.type=PEM, as for Kafka's clients"
            ),
        ),
        ({"timeout": "5"}, "set schema.registry.request.timeout.ms, which is the timeout of a "),
        (
            {"bearer.auth.credentials.source": "CUSTOM"},
            "providers of tokens cannot be named here: set schema.registry.bearer.auth.token",
        ),
    ]:
        assert f"is not supported: {advice}" in refusal({**URL, **settings})


@pytest.mark.parametrize("name", REFUSED_REGISTRY)
def test_settings_that_are_not_supported_have_a_reason(name):
    """It says what to set instead, if there is something."""
    reason = REFUSED_REGISTRY[name].said("schema.registry.")
    assert "{" not in reason
    expected = f"schema.registry.{name} is not supported: {reason}"
    assert expected == refusal({**URL, name: "planted"})
    assert name not in REGISTRY_CONFIG_DEF
    for value in REFUSED_REGISTRY[name].accepted:
        assert read(URL) == read({**URL, name: value})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("max.retrys", "max.retries"),
        ("schema.registry.max.retries", "max.retries"),
        ("basic.auth.userinfo", "basic.auth.user.info"),
        ("ssl.truststore.locations", "ssl.truststore.location"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_one(name, nearest):
    """The error does not show the value."""
    assert (
        f"unknown option 'schema.registry.{name}'; did you mean 'schema.registry.{nearest}'?"
    ) == refusal({**URL, name: "planted"})


@pytest.mark.parametrize("settings", ["https://a", {5: "a"}])
def test_settings_are_a_mapping_of_names(settings):
    """Anything else is an error of the configuration."""
    with pytest.raises(ConfigError):
        RegistrySettings.from_mapping(settings)


def test_tls_is_configured_as_for_kafkas_clients():
    """The settings have the same names, types and defaults."""
    settings = read(URL, ssl_truststore_location="/trust", ssl_truststore_type="PEM")
    assert "/trust" == settings.security.ssl_truststore_location
    assert ("TLSv1.2", "TLSv1.3") == settings.security.ssl_enabled_protocols
    assert "ssl_truststore_location='/trust'" in repr(settings)


def test_tls_needs_a_url_with_https():
    """Otherwise the setting would have no effect."""
    message = refusal({"url": "http://a,http://b"}, ssl_truststore_location="/planted")
    assert message.startswith("schema.registry.ssl.truststore.location requires an https:// URL")
    mixed = read({"url": "http://a,https://b"}, ssl_truststore_location="/a")
    assert "/a" == mixed.security.ssl_truststore_location


def test_secrets_may_be_references(monkeypatch):
    """They are resolved here, pickled as references, and never shown."""
    monkeypatch.setenv("WHERE", "https://me:planted@a")
    monkeypatch.setenv("FILE", "/planted/file")
    given = {"url": "${env:WHERE}", "ssl.truststore.location": "${env:FILE}"}
    settings = read(given)
    assert (RegistryUrl("https://a", Password("me:planted")),) == settings.url
    assert "/planted/file" == settings.security.ssl_truststore_location
    assert "[hidden]" == settings.shown(settings.url[0])
    assert "planted" not in repr(settings)
    assert "https://a" not in repr(settings)
    pickled = pickle.dumps(settings)
    assert b"planted" not in pickled
    assert settings == pickle.loads(pickled)  # noqa: S301 -- our own bytes
    assert "schema.registry." == pickle.loads(pickled).prefix  # noqa: S301


def test_settings_that_hold_no_secret_accept_no_references():
    """A reference in them could only leak what it reads."""
    message = refusal({**URL, "request.timeout.ms": "${env:HOME}"})
    assert message.startswith("schema.registry.request.timeout.ms does not accept ${} references")


@pytest.mark.parametrize("name", ["url", "proxy"])
def test_urls_are_limited_by_the_allow_list(monkeypatch, name):
    """A service that takes options from users can say which hosts they may name."""
    monkeypatch.setenv("SPARK_KAFKA_SINK_ALLOWED_URLS", "https://registry:8081, http://proxy:1")
    settings = read({**URL, "proxy": "http://proxy:1"})
    assert RegistryUrl("http://proxy:1") == settings.proxy
    assert "proxy='http://proxy:1'" in repr(settings)
    assert "max_retries=3" in repr(settings)
    message = refusal({**URL, name: "http://me:planted@other"})
    assert message.startswith(f"schema.registry.{name} ")
    assert message.endswith(
        "cannot be used: SPARK_KAFKA_SINK_ALLOWED_URLS does not allow it in this process"
    )


def test_credentials_make_settings_different():
    """Clients with other credentials must not share what they fetch."""
    settings = [
        read(URL),
        read({**URL, "bearer.auth.token": "a"}),
        read({**URL, "bearer.auth.token": "b"}),
        read(URL, basic_auth_user_info="a:a"),
        read(URL, basic_auth_user_info="a:b"),
    ]
    assert len(settings) == len(set(settings))
    assert settings[1] == read({**URL, "bearer.auth.token": "a"})


def test_the_settings_are_options_of_spark_with_their_prefix():
    """Names are not case-sensitive, and other options are left alone."""
    options = {"Schema.Registry.URL": "https://a", "topic": "t", "schema.registry.proxy": "b"}
    assert {"url": "https://a", "proxy": "b"} == registry_options(options)


def test_a_registry_is_not_a_part_of_kafka():
    """The prefix of Kafka's settings is an error that says what to write."""
    with pytest.raises(ConfigError) as caught:
        registry_options({"kafka.schema.registry.url": "https://planted"})
    assert (
        "unknown option 'kafka.schema.registry.url': a registry is not a part of Kafka, so write "
        "'schema.registry.url'"
    ) == str(caught.value)


@pytest.mark.parametrize("name", ["retries.wait.ms", "retries.max.wait.ms"])
def test_waits_without_retries_are_refused(name):
    """Without retries there are no waits between them."""
    expected = (
        f"schema.registry.{name} has no effect with schema.registry.max.retries=0: remove one of "
        "them"
    )
    assert expected == refusal({**URL, "max.retries": "0", name: "10"})


def test_settings_differ_in_what_they_hide(monkeypatch):
    """A cache must not return an object that shows what another one hides."""
    monkeypatch.setenv("WHERE", "https://planted:8081")
    plain, hidden = read({"url": "https://planted:8081"}), read({"url": "${env:WHERE}"})
    assert plain.url == hidden.url
    assert plain != hidden
    assert hidden == pickle.loads(pickle.dumps(hidden))  # noqa: S301 -- our own bytes
    assert hidden == read({"url": "${env:WHERE}"})
    assert plain != RegistrySettings.from_mapping({"url": "https://planted:8081"})
    assert "planted" not in repr(hidden)
    assert ({"planted", "https://planted:8081"}, set()) == (hidden.secrets, plain.secrets)
