"""A password in a URL is never printed."""

from streampca.settings import WorkerSettings


def test_a_password_in_a_url_is_masked() -> None:
    url = "http://me:secret@registry:8081"
    effective, mistakes = WorkerSettings.explain(topic="t", schema_registry_url=url, format="avro")
    shown = next(setting.value for setting in effective if setting.name == "schema_registry_url")
    assert "secret" not in shown
    assert shown.endswith("@registry:8081")
    assert not any("secret" in mistake for mistake in mistakes)


def test_of_several_urls_every_password_is_masked() -> None:
    url = "http://me:secret@one,http://you:other/secret@two"
    effective, mistakes = WorkerSettings.explain(topic="t", schema_registry_url=url)
    shown = next(setting.value for setting in effective if setting.name == "schema_registry_url")
    assert "secret" not in shown + " ".join(mistakes)
