"""Request/reply: a request goes to one responder, and its reply or error comes back before the deadline."""

from dataclasses import dataclass

import headwater as hw
from headwater.errors import AnswerFailedError, NoAnswerError
from headwater.testing import run

app = hw.App("prices")
PRICES = {"tea": 990, "ink": 450}
STOCK = [{"tea": 3, "ink": 1}, {"tea": 4}, {"ink": 5}]  # by partition


@dataclass
class Wanted:
    """The request: an article and how many of it."""

    article: str
    pieces: int = 1


@dataclass
class Quote:
    """The reply: the price of all pieces."""

    article: str
    cents: int


@app.answer("prices.quote")
def quote(wanted: Wanted) -> Quote:
    """Called with the request; the return value is the reply."""
    return Quote(wanted.article, PRICES[wanted.article] * wanted.pieces)


@app.answer("stock.count", threads=3)
async def count(question: dict[str, int | str]) -> int:
    """Answers for one partition."""
    return STOCK[int(question["partition"])].get(str(question["article"]), 0)


# `headwater run 35_ask_answer.py` answers until Ctrl-C; here it answers briefly.
if __name__ == "__main__":
    with run(app) as world:
        client = world.client
        print(client.ask("prices.quote", Wanted("tea", 3), timeout=30, as_=Quote))
        try:
            client.ask("prices.quote", {"article": "gold"}, timeout=30)
        except AnswerFailedError as error:
            print(f"failed: {error.data['type']} {error.data['message']}")
        try:
            client.ask("prices.history", {"article": "tea"}, timeout=0.2)
        except NoAnswerError as error:
            print(f"nobody answers, question was sent: {error.data['sent']}")

        # Scatter and gather: one request for each partition, and the replies that arrive by the deadline.
        parts = client.ask_all("stock.count", [{"article": "tea", "partition": n} for n in range(4)], timeout=30)
        print(f"parts {parts.answers}, complete {parts.complete}, in stock {sum(filter(None, parts.answers))}")
        print(f"partition 3: {parts.errors[3].data['type']}")
