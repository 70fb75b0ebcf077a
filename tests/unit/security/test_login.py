from __future__ import annotations

import json
from base64 import urlsafe_b64decode

import pytest

from spark_kafka_sink.security.login import (
    MskIamToken,
    PasswordLogin,
    TokenFile,
    TokenFunction,
    TokenSettings,
    UnsecuredToken,
    read_login,
)
from spark_kafka_sink.security.oauth_bearer import ClientCredentials, read_token
from spark_kafka_sink.security.sasl import SaslMechanism

KAFKA = "org.apache.kafka.common.security"
PLAIN = f"{KAFKA}.plain.PlainLoginModule required"
SCRAM = f"{KAFKA}.scram.ScramLoginModule required"
BEARER = f"{KAFKA}.oauthbearer.OAuthBearerLoginModule required"
USER = 'username="alice" password="planted-secret"'
URL = "https://idp.example/token"


def login(mechanism, jaas, **tokens):
    return read_login(mechanism, jaas, TokenSettings(**tokens))


def refusal(mechanism, jaas, **tokens):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is compared
        login(mechanism, jaas, **tokens)
    assert "planted-secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("mechanism", "jaas", "said"),
    [
        ("PLAIN", f"{PLAIN} {USER};", b"\0alice\0planted-secret"),
        ("SCRAM-SHA-256", f"{SCRAM} {USER};", b"n,,n=alice,r="),
        ("SCRAM-SHA-512", f"kafkashaded.{SCRAM} {USER};", b"n,,n=alice,r="),
    ],
)
def test_username_and_password_are_read(mechanism, jaas, said):
    """A JVM user's login module provides the credentials, and each exchange is a new one."""
    made = login(mechanism, jaas)
    assert (
        PasswordLogin(
            mechanism=SaslMechanism(mechanism),
            username="alice",
            password="planted-secret",  # noqa: S106
        )
        == made
    )
    assert made.client().initial_response().startswith(said)
    assert made.client() is not made.client()
    assert "planted-secret" not in repr(made)


def test_a_delegation_token_is_announced():
    """With tokenauth the username is the id of a delegation token (KIP-48)."""
    made = login("SCRAM-SHA-256", f'{SCRAM} {USER} tokenauth="true";')
    assert made.client().initial_response().endswith(b",tokenauth=true")


@pytest.mark.parametrize(
    ("mechanism", "jaas", "problem"),
    [
        ("PLAIN", None, "sasl.jaas.config is required with sasl.mechanism=PLAIN: org.apache"),
        ("PLAIN", f'{PLAIN} password="planted-secret";', "sasl.jaas.config has no username"),
        ("PLAIN", f'{PLAIN} username="a" password="";', "sasl.jaas.config has no password"),
        ("PLAIN", f'{PLAIN} username="a\\0" password="b";', "sasl.jaas.config: the username must"),
        ("PLAIN", f"{PLAIN} {USER}", "sasl.jaas.config must end with a semicolon"),
        ("SCRAM-SHA-256", f"{PLAIN} {USER};", "set sasl.mechanism=PLAIN, or name org.apache."),
        ("PLAIN", f"{SCRAM} {USER};", "set sasl.mechanism=SCRAM-SHA-256 or SCRAM-SHA-512, or"),
        ("PLAIN", f"com.example.Module required {USER};", "names 'com.example.Module', but sasl."),
        ("OAUTHBEARER", f"{PLAIN} {USER};", "set sasl.mechanism=PLAIN"),
        ("OAUTHBEARER", None, "sasl.oauthbearer.token.endpoint.url and sasl.login.callback"),
        ("OAUTHBEARER", f'{BEARER} unsecuredLoginStringClaim_exp="1";', "claim 'exp' of a token"),
        (
            "OAUTHBEARER",
            f'{BEARER} unsecuredLoginStringClaim_sub="a" unsecuredLoginLifetimeSeconds="1.5";',
            "unsecuredLoginLifetimeSeconds must be a whole number",
        ),
        (
            "OAUTHBEARER",
            f'{BEARER} unsecuredLoginNumberClaim_n="x";',
            "unsecuredLoginNumberClaim_n must be a number",
        ),
        (
            "OAUTHBEARER",
            f'{BEARER} unsecuredLoginStringClaim_sub="a" unsecuredLoginExtension_auth="x";',
            "sasl.jaas.config: the SASL extension 'auth'",
        ),
    ],
)
def test_invalid_settings_are_refused(mechanism, jaas, problem):
    """The error says what is wrong and what to write, and shows no password."""
    assert problem in refusal(mechanism, jaas)


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ({"handler": "token_endpoint"}, "sasl.oauthbearer.token.endpoint.url is required"),
        ({"url": "http://idp.example/x"}, "sasl.oauthbearer.token.endpoint.url must be an https"),
        ({"url": "file:"}, "sasl.oauthbearer.token.endpoint.url names no file"),
        ({"url": "file://host/x"}, "sasl.oauthbearer.token.endpoint.url names no file"),
        ({"url": URL}, "sasl.oauthbearer.client.credentials.client.id is required"),
        ({"url": URL, "client_id": "a"}, "sasl.oauthbearer.client.credentials.client.secret is r"),
    ],
)
def test_a_token_endpoint_requires_all_its_settings(tokens, problem):
    """The error names the missing setting."""
    assert problem in refusal("OAUTHBEARER", None, **tokens)


def test_client_credentials_come_from_settings_or_the_login_module():
    """Settings take precedence over options of sasl.jaas.config (KIP-1139), which still work."""
    jaas = f'{BEARER} clientId="a" clientSecret="planted-secret" scope="s" ssl.truststore.type=PEM;'
    old = login("OAUTHBEARER", jaas, url=URL, urlencode=True)
    assert (
        ClientCredentials(
            url=URL,
            client_id="a",
            client_secret="planted-secret",  # noqa: S106
            scope="s",
            urlencode=True,
        )
        == old.source
    )
    assert {"ssl.truststore.type": "PEM"} == old.tls_options
    new = login("OAUTHBEARER", jaas, url=URL, client_id="b", client_secret="c", scope="t")  # noqa: S106
    assert ("b", "c", "t") == (new.source.client_id, new.source.client_secret, new.source.scope)
    assert "planted-secret" not in repr((old, new))


def test_a_token_can_be_read_from_a_file():
    """A file:// URL names a file into which another process writes tokens."""
    assert TokenFile("/a b/token") == login("OAUTHBEARER", None, url="file:///a%20b/token").source


def test_a_function_can_provide_tokens():
    """The network layer calls the function that the handler names."""
    handler = "'package.module:function'"
    assert TokenFunction(handler) == login("OAUTHBEARER", None, handler=handler).source


def test_an_unsecured_token_is_made_as_in_java():
    """String, number and list claims, lifetime and subject claim are configured as in Java."""
    made = login(
        "OAUTHBEARER",
        f'{BEARER} unsecuredLoginStringClaim_azp="alice" unsecuredLoginNumberClaim_n="1.5" '
        'unsecuredLoginListClaim_scope="|a|b" unsecuredLoginListClaim_none="|" '
        'unsecuredLoginPrincipalClaimName="azp" unsecuredLoginLifetimeSeconds="60" '
        'unsecuredLoginExtension_traceId="7";',
    )
    assert isinstance(made.source, UnsecuredToken)
    token = made.source.make(1000.0)
    claims = json.loads(urlsafe_b64decode(token.value.split(".")[1] + "=="))
    expected = {"azp": "alice", "n": 1.5, "scope": ["a", "b"], "none": []}
    assert {"iat": 1000.0, "exp": 1060.0, **expected} == claims
    assert ("alice", 1060.0) == (token.subject, token.expires_at)
    assert b"\x01traceId=7\x01" in made.client(token).initial_response()


def test_options_that_are_not_claims_are_ignored():
    """Options with another name, no claim, or a kind unknown to Java are not in the token."""
    made = login(
        "OAUTHBEARER",
        f'{BEARER} StringClaim_a="x" unsecuredLoginStringClaim_="x" unsecuredLogin="x" '
        'unsecuredLoginUnknownClaim_b="x" unsecuredLoginBooleanClaim_c="x" '
        'unsecuredLoginStringClaim_sub="alice";',
    )
    assert UnsecuredToken({"sub": "alice"}, 3600.0, "sub") == made.source


def test_each_exchange_sends_the_token_it_is_given():
    """A login creates an exchange for any token."""
    made = login("OAUTHBEARER", f'{BEARER} extension_a="b";', url="file:///t")
    said = made.client(read_token("x.y.z")).initial_response()
    assert b"n,,\x01auth=Bearer x.y.z\x01a=b\x01\x01" == said


def test_an_unsupported_mechanism_is_refused():
    """The error says what is not supported, and what is."""
    assert (
        "sasl.mechanism CRAM-MD5 is not supported: set it to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, "
        "OAUTHBEARER, GSSAPI or AWS_MSK_IAM, whichever the cluster uses"
    ) == refusal("CRAM-MD5", None)


@pytest.mark.parametrize(
    ("options", "source", "named"),
    [
        ("", MskIamToken(), "AWS credentials"),
        ('awsProfileName="p"', MskIamToken(profile="p"), "AWS profile p"),
        (
            'awsRoleArn="arn" awsRoleSessionName="s" awsRegion="eu-west-1"',
            MskIamToken(role_arn="arn", session_name="s", region="eu-west-1"),
            "AWS role arn",
        ),
    ],
)
def test_aws_credentials_are_named_as_in_java(options, source, named):
    """Options of Amazon's Java login module work with its mechanism and with OAUTHBEARER."""
    jaas = f"software.amazon.msk.auth.iam.IAMLoginModule required {options};"
    made = login("AWS_MSK_IAM", jaas)
    assert (source, SaslMechanism.OAUTHBEARER) == (made.source, made.mechanism)
    assert source == login("OAUTHBEARER", f"{BEARER} {options};", handler="msk_iam").source
    assert named == str(source)
    assert MskIamToken() == login("AWS_MSK_IAM", None).source
