"""Many questions about one picture: decoded once, encoded once, its tokens computed once.

python examples/many_questions.py
"""

import mmserve as sgl
from mmserve.testing import scene


@sgl.function
def ask(s, picture, question):
    s += sgl.user(sgl.image(picture) + question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=64, temperature=0))


def main():
    picture = scene(7)
    rows = [
        {"picture": picture.image, "question": q.question}
        for q in picture.questions
        if not q.history and q.other_image is None
    ][:8]
    with sgl.Engine(model="tabletop") as engine:
        states = ask.run_batch(rows, backend=engine)
        for row, state in zip(rows, states, strict=True):
            meta = state.get_meta_info("answer")
            print(f"{row['question']}\n  {state['answer']}")
            print(f"  {meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached")
        counters = engine.counters()
        print(f"pictures decoded: {counters['media_decodes_total']:.0f}")
        print(f"pictures encoded: {counters['encoded_items_total']:.0f}")


if __name__ == "__main__":
    main()
