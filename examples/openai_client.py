"""The unmodified `openai` client against `mmserve serve`.

mmserve serve --port 30000 &
python examples/openai_client.py http://127.0.0.1:30000
"""

import base64
import io
import sys

from openai import OpenAI

from mmserve.testing import scene


def main():
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    buffer = io.BytesIO()
    scene(7).image.save(buffer, "PNG")
    picture = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    for question in ("How many objects are there?", "Describe the picture as JSON."):
        reply = client.chat.completions.create(
            model="tabletop",
            temperature=0,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": picture}},
                        {"type": "text", "text": question},
                    ],
                }
            ],
        )
        usage = reply.usage
        print(question)
        print(f"  {reply.choices[0].message.content}")
        print(
            f"  {usage.prompt_tokens} prompt tokens, "
            f"{usage.prompt_tokens_details.cached_tokens} cached"
        )


if __name__ == "__main__":
    main()
