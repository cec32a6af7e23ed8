"""The official client against a running server: MET_URL says where it listens."""

import os

import httpx
import openai
import pytest

URL = os.environ["MET_URL"].rstrip("/")


@pytest.fixture(scope="session")
def client():
    with openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def raw():
    """A plain HTTP client, for what the official one hides."""
    with httpx.Client(base_url=URL, timeout=120) as raw:
        yield raw


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="session")
def url():
    return URL
