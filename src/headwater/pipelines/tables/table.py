from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    sql: str
    inputs: tuple

    @classmethod
    def named(cls, name):
        return cls(f"select * from `{name}`", (name,))
