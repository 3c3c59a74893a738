"""Files of the unmodified `openai` client."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import openai
import pytest
from support.oracle import image_part


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    """A client that tries once."""
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="any", max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, part: dict[str, object]) -> str:
    """The greedy answer to one question about a picture."""
    content = [{"type": "text", "text": "What is this?"}, part]
    answer = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": content}],
        max_tokens=8,
        temperature=0,
    )
    assert answer.usage.to_dict()["prompt_tokens_details"]["image_tokens"] > 0
    return answer.choices[0].message.content


def test_a_named_file_answers_as_its_content(client: openai.OpenAI, pictures) -> None:
    """Uploaded once, named by id; another picture answers otherwise."""
    files = [
        client.files.create(file=("a.png", picture), purpose="vision") for picture in pictures
    ]
    named = [
        ask(client, {"type": "image_url", "image_url": {"url": file.id}}) for file in files
    ]

    assert named == [ask(client, image_part(picture)) for picture in pictures]
    assert named[0] != named[1]


def test_a_file_goes_through_all_calls_of_the_client(client: openai.OpenAI, pictures) -> None:
    """Created, listed, retrieved, read and deleted; then it is not found."""
    file = client.files.create(file=("b.png", pictures[0]), purpose="user_data")

    assert file.to_dict() == client.files.retrieve(file.id).to_dict()
    assert (file.object, file.bytes, file.filename) == ("file", len(pictures[0]), "b.png")
    assert file.id in [listed.id for listed in client.files.list(purpose="user_data", limit=1)]
    assert client.files.content(file.id).read() == pictures[0]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    with pytest.raises(openai.NotFoundError, match=file.id):
        ask(client, {"type": "image_url", "image_url": {"url": file.id}})


def test_pages_of_files_are_walked_by_the_client(client: openai.OpenAI, pictures) -> None:
    """One a page, all of them, the newest first."""
    ids = [
        client.files.create(file=(f"{k}", pictures[0]), purpose="evals").id for k in range(3)
    ]

    assert [file.id for file in client.files.list(purpose="evals", limit=1)] == ids[::-1]


def test_what_is_no_picture_is_refused_when_it_is_named(client: openai.OpenAI) -> None:
    """Not when it is uploaded."""
    file = client.files.create(file=("a.txt", b"plain words"), purpose="vision")
    data = base64.b64encode(b"plain words").decode()
    for url in (file.id, f"data:image/png;base64,{data}"):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, {"type": "image_url", "image_url": {"url": url}})
        assert caught.value.code == "media_refused"


def test_a_file_that_is_empty_is_refused(client: openai.OpenAI) -> None:
    """At once."""
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.files.create(file=("a.png", b""), purpose="vision")


def test_a_file_expires_when_the_client_asks(client: openai.OpenAI, pictures) -> None:
    """`expires_after` counts from the upload, and `expires_at` says when."""
    after = {"anchor": "created_at", "seconds": 3600}
    file = client.files.create(
        file=("c.png", pictures[0]), purpose="vision", expires_after=after
    )

    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id).expires_at == file.expires_at
