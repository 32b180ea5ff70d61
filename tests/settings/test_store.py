"""The setting `store`: a folder or the URL of a bucket, which holds no secret."""

from pathlib import Path

import pytest

from streampca.errors import SettingsError
from streampca.settings import store_url
from streampca.settings.commands import ServeSettings, WorkerSettings
from streampca.stores.choice import open_store, store_and_name
from streampca.stores.directory import DirectoryStore

GOOD = {
    "s3://bucket": "s3://bucket",
    "s3://bucket/": "s3://bucket",
    "S3://bucket/a/b/": "s3://bucket/a/b",
    "gs://my.bucket_1/a": "gs://my.bucket_1/a",
    "az://container/a": "az://container/a",
    "folder": "folder",
    "/var/lib/streampca": "/var/lib/streampca",
    "a folder/..": "a folder/..",
}
BAD = {
    "s3://": "the bucket is not valid",
    "s3:///a": "the bucket is not valid",
    "s3://bucket?versionId=hush-hush": "the bucket is not valid",
    "az://container/a?sig=hush-hush": "the prefix is not valid",
    "s3://bucket/a//b": "the prefix is not valid",
    "s3://bucket/../b": "the prefix is not valid",
    "s3://bucket/a b": "the prefix is not valid",
    "s3://key:hush-hush@bucket/a": "credentials do not belong into the URL: set AWS_ACCESS_KEY_ID",
    "gs://hush-hush@bucket/a": "credentials do not belong into the URL: set GOOGLE_APPLICATION_CREDENTIALS",
    "http://host/hush?hush-hush": "begins with s3://, gs:// or az://",
    "hdfs://host/a": "begins with s3://, gs:// or az://",
    "s3a://bucket/a": "begins with s3://, gs:// or az://",
}


@pytest.mark.parametrize(("location", "meant"), GOOD.items())
def test_folders_and_urls_are_accepted(location: str, meant: str) -> None:
    assert ServeSettings(topic="t", store=location).store == meant


@pytest.mark.parametrize(("location", "sentence"), BAD.items())
def test_mistakes_are_explained_without_secrets(location: str, sentence: str) -> None:
    for attempt in (
        lambda: open_store(location),
        lambda: store_and_name(f"{location}/model.npz"),
        lambda: ServeSettings.read(topic="t", store=location),
    ):
        with pytest.raises(SettingsError) as caught:
            attempt()
        assert "hush-hush" not in str(caught.value)
    assert sentence in str(caught.value)
    rows, mistakes = ServeSettings.explain(topic="t", store=location)
    assert "hush-hush" not in f"{rows}{mistakes}"


def test_a_path_is_a_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert isinstance(store, DirectoryStore)
    assert store.root == tmp_path
    assert ServeSettings(topic="t", store=tmp_path).store == str(tmp_path)


def test_a_missing_package_is_a_mistake_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_url, "is_supported", lambda: False)
    required = {"topic": "t", "dimensions": 3, "components": 2}
    assert WorkerSettings.explain(**required, store="s3://bucket/a")[1] == [store_url.MISSING_PACKAGE]
    assert WorkerSettings.explain(**required, store="folder")[1] == []
    with pytest.raises(SettingsError, match=r"pip install '\.\[object-store\]'"):
        open_store("s3://bucket/a")
