"""The test broker's configuration: users, listeners, short intervals."""

from collections.abc import Mapping
from pathlib import Path

from tests.certificates import Certificates
from tests.token_server import AUDIENCE, write_keys

# A client's options for the SASL listener: `KafkaProducer(bootstrap_servers=broker.sasl_bootstrap, **SASL)`.
# Listeners with authentication by password support all of these mechanisms.
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USER, PASSWORD = "alice", "alice-secret"
SASL = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": USER,
    "sasl_plain_password": PASSWORD,
}

_PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners={clients},PROXIED://127.0.0.1:{proxied},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={clients},PROXIED://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TOKENS:SASL_PLAINTEXT,\\
  SECURE:SASL_SSL,MUTUAL:SSL,\\
  CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
# A user has every right unless a test takes it away.
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
sasl.enabled.mechanisms={mechanisms}
{logins}
{tokens}
ssl.keystore.type=PEM
ssl.keystore.location=keystore.pem
ssl.truststore.type=PEM
ssl.truststore.location={authority}
listener.name.mutual.ssl.client.auth=required
log.dirs={data}
auto.create.topics.enable=false
num.partitions=1
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=500
num.network.threads=1
num.io.threads=4
background.threads=2
metadata.max.idle.interval.ms=5000
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
log.retention.ms=-1
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=1000
log.cleaner.backoff.ms=500
log.segment.delete.delay.ms=1000
file.delete.delay.ms=1000
"""

_LOGIN = """
listener.name.{listener}.plain.sasl.jaas.config={security}.plain.PlainLoginModule \\
  required user_{user}="{password}";
listener.name.{listener}.scram-sha-256.sasl.jaas.config={security}.scram.ScramLoginModule required;
listener.name.{listener}.scram-sha-512.sasl.jaas.config={security}.scram.ScramLoginModule required;
"""

_TOKENS = """
listener.name.tokens.sasl.enabled.mechanisms=OAUTHBEARER
listener.name.tokens.oauthbearer.sasl.jaas.config={security}.oauthbearer.OAuthBearerLoginModule required;
listener.name.tokens.oauthbearer.sasl.server.callback.handler.class=\\
  {security}.oauthbearer.OAuthBearerValidatorCallbackHandler
listener.name.tokens.oauthbearer.connections.max.reauth.ms=3600000
sasl.oauthbearer.jwks.endpoint.url={keys}
sasl.oauthbearer.jwt.validator.class={security}.oauthbearer.BrokerJwtValidator
sasl.oauthbearer.expected.audience={audience}
"""

_LOG4J = """
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def write_keystore(folder: Path, certificates: Certificates) -> None:
    """Write the broker's key and certificate, which it reads at startup."""
    (folder / "keystore.pem").write_bytes(certificates.server_key.read_bytes() + certificates.server.read_bytes())


def configure(
    folder: Path, ports: Mapping[str, int], proxied: tuple[int, int], controller: int, certificates: Certificates
) -> None:
    """Write the broker's files; `ports` maps the names of its listeners for clients to loopback ports.

    `proxied` are the port of one more listener and the proxy's, which the broker advertises for it.
    """
    (folder / "log4j2.properties").write_text(_LOG4J)
    write_keystore(folder, certificates)
    named = {"user": USER, "password": PASSWORD, "security": "org.apache.kafka.common.security"}
    properties = _PROPERTIES.format(
        clients=",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        proxied=proxied[0],
        proxy=proxied[1],
        controller=controller,
        mechanisms=",".join(MECHANISMS),
        logins="".join(_LOGIN.format(listener=listener, **named) for listener in ("login", "secure")),
        tokens=_TOKENS.format(keys=write_keys(folder).as_uri(), audience=AUDIENCE, **named),
        authority=certificates.authority,
        data=folder / "data",
    )
    (folder / "server.properties").write_text(properties)
