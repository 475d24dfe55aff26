"""Rewrites the narrow part of a plan so that one Spark job finds all rows on which it fails.

The narrow part consists of the steps before the first shuffle: `select`, `where`, Python functions, `explode`, unions
and joins with static tables. `probe_frame` starts from Spark's optimised plan, so that only expressions that the query
really evaluates count, after the filters that Spark moves before them. Each step is rebuilt with two hidden columns:
the number of the row in the batch, and the first failure. An expression of Spark's that fails gives null (`TryEval`), a
Python function is called by `probed_function`. Each end of the narrow part becomes one branch of the result.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType, _parse_datatype_json_string
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from headwater.engine.build.plan_analysis import append_all, frame_of, scala_items
from headwater.engine.quarantine.probed_function import (
    ROW,
    WHY,
    ArrowVectors,
    PandasVectors,
    ProbedBatches,
    ProbedMap,
    ProbedRows,
    UserFunction,
    Vectors,
)

__all__ = ["EXPRESSION", "probe_frame", "probe_session"]

EXPRESSION: Final = "expression "
"""The beginning of a failure that is an expression of Spark's; others are JSON (see `describe_failure`)."""
_TRANSPARENT: Final = ("CollectMetrics", "RebalancePartitions", "Repartition", "RepartitionByExpression", "Sort")
"""Steps that neither compute nor change rows."""
_VIEW_NAME: Final = re.compile(r"\b_pyspark_[0-9a-f]+\.")
"""The name that Spark gives to a DataFrame in a SQL text."""
_SAFE: Final = ("AttributeReference", "Literal")
"""Expressions that cannot fail."""
_BATCH_TYPES: Final[dict[int, tuple[int, Vectors, bool]]] = {
    PythonEvalType.SQL_SCALAR_PANDAS_UDF: (PythonEvalType.SQL_SCALAR_PANDAS_UDF, PandasVectors(), False),
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF: (PythonEvalType.SQL_SCALAR_PANDAS_UDF, PandasVectors(), True),
    PythonEvalType.SQL_SCALAR_ARROW_UDF: (PythonEvalType.SQL_SCALAR_ARROW_UDF, ArrowVectors(), False),
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF: (PythonEvalType.SQL_SCALAR_ARROW_UDF, ArrowVectors(), True),
}
"""Kinds of Python functions over columns: the kind to call it as, its columns, and whether it takes an iterator."""


def probe_session(spark: SparkSession) -> SparkSession:
    """Returns a session for `probe_frame`."""
    session = spark.newSession()
    # This rule evaluates plans over local rows in the optimiser, where an error ends the search.
    rule = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    session.conf.set("spark.sql.optimizer.excludedRules", rule)
    # Common parts of two expressions would be evaluated before, and outside, `TryEval`.
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    return session


def probe_frame(result: DataFrame) -> DataFrame | None:
    """Returns a DataFrame of the failing rows, `ROW` and `WHY`; None if no step can be probed.

    Args:
        result: The result of the user's function over DataFrames with a column `ROW`, from a `probe_session`.
    """
    return _PlanProbe(result).frame()


class _PlanProbe:
    """Rewrites one optimised plan from its root down."""

    def __init__(self, result: DataFrame) -> None:
        self._like = result
        self._ends: list[DataFrame] = []
        jvm: Any = result.sparkSession.sparkContext._jvm
        self._jvm = jvm
        self._expressions: Any = jvm.org.apache.spark.sql.catalyst.expressions

    def frame(self) -> DataFrame | None:
        """Returns the failing rows of all ends of the narrow part."""
        self._end(self._like._jdf.queryExecution().optimizedPlan())
        return reduce(DataFrame.union, self._ends) if self._ends else None

    def _end(self, plan: Any, *expressions: Any) -> None:
        """End the narrow part above a step; `expressions` are those of the next step that it evaluates for each row."""
        probe = self._rewrite(plan)
        if probe is not None:
            probe = self._check(probe, expressions)
            self._ends.append(probe.select(ROW, WHY).where(F.col(WHY).isNotNull() & F.col(ROW).isNotNull()))

    def _rewrite(self, plan: Any) -> DataFrame | None:
        """Returns a step with the hidden columns appended; None if its rows are not those of the batch."""
        children = scala_items(plan.children())
        if not children:
            frame = frame_of(self._like, plan)
            return frame.withColumn(WHY, F.lit(None).cast("string")) if ROW in frame.columns else None
        kind = str(plan.nodeName())
        if kind in _TRANSPARENT:
            return self._rewrite(children[0])
        rewriters = {
            "ArrowEvalPython": self._rewrite_functions,
            "BatchEvalPython": self._rewrite_functions,
            "Filter": self._rewrite_filter,
            "Generate": self._rewrite_generate,
            "Join": self._rewrite_join,
            "MapInArrow": self._end_in_map,
            "MapInPandas": self._end_in_map,
            "Project": self._rewrite_project,
            "Union": self._rewrite_union,
        }
        if kind in rewriters:
            return rewriters[kind](plan, children)
        for child in children:
            self._end(child, *(_row_expressions(plan) if kind == "Aggregate" else ()))
        return None

    # -- steps -----------------------------------------------------------------------------------------------------

    def _rewrite_project(self, plan: Any, children: list[Any]) -> DataFrame | None:
        probe = self._rewrite(children[0])
        if probe is None:
            return None
        aliases = scala_items(plan.projectList())
        named = [one for one in aliases if one.nodeName() == "Alias"]
        columns = [
            one if one.nodeName() != "Alias" else one.withNewChildren(_sequence(one.children(), self._try(one.child())))
            for one in aliases
        ]
        probe = self._check(probe, [one.child() for one in named])
        return probe.select(*map(self._column, columns), ROW, WHY)

    def _rewrite_filter(self, plan: Any, children: list[Any]) -> DataFrame | None:
        probe = self._rewrite(children[0])
        if probe is None:
            return None
        probe = self._check(probe, [plan.condition()])
        return probe.where(F.col(WHY).isNotNull() | self._column(self._try(plan.condition())))

    def _rewrite_union(self, plan: Any, children: list[Any]) -> DataFrame | None:
        probes = [self._rewrite(child) for child in children]
        if not any(probes):
            return None
        below = []
        for child, probe in zip(children, probes, strict=True):
            known = probe or frame_of(self._like, child).withColumns(
                {ROW: F.lit(None).cast("bigint"), WHY: F.lit(None).cast("string")}
            )
            below.append(_plan(known.select(*map(self._column, scala_items(child.output())), ROW, WHY)))
        return frame_of(self._like, plan.withNewChildren(_sequence(plan.children(), *below)))

    def _rewrite_join(self, plan: Any, children: list[Any]) -> DataFrame | None:
        """A join with a static table is narrow if that is broadcast, and a join of two streams never is."""
        probes = [self._rewrite(child) for child in children]
        for probe in probes:
            if probe is not None:  # the join may drop rows that have failed
                self._ends.append(probe.select(ROW, WHY).where(F.col(WHY).isNotNull()))
        if sum(probe is not None for probe in probes) != 1:
            return None
        below = [child if probe is None else _plan(probe) for child, probe in zip(children, probes, strict=True)]
        joined = frame_of(self._like, plan.withNewChildren(_sequence(plan.children(), *below)))
        return joined if ROW in joined.columns else None

    def _rewrite_generate(self, plan: Any, children: list[Any]) -> DataFrame | None:
        probe = self._rewrite(children[0])
        if probe is None:
            return None
        arguments = scala_items(plan.generator().children())
        below = _plan(self._check(probe, arguments))
        generator = plan.generator().withNewChildren(_sequence(plan.generator().children(), *map(self._try, arguments)))
        # With `outer`, a row stays if it has failed.
        none = plan.unrequiredChildIndex().take(0)
        logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
        outputs = plan.qualifier(), plan.generatorOutput()
        return frame_of(self._like, logical.Generate(generator, none, True, *outputs, below))

    def _rewrite_functions(self, plan: Any, children: list[Any]) -> DataFrame | None:
        probe = self._rewrite(children[0])
        if probe is None:
            return None
        values, reasons = [], []
        for udf, attribute in zip(scala_items(plan.udfs()), scala_items(plan.resultAttrs()), strict=True):
            function, arguments = self._unpack(udf)
            probe = self._check(probe, arguments)
            columns = [self._column(self._try(one)) for one in arguments]
            value = _probed(udf, function, explains=False)(*columns)
            values.append(self._rename(value, attribute))
            reasons.append(_probed(udf, function, explains=True)(*columns))
        kept = map(self._column, scala_items(children[0].output()))
        return probe.select(*kept, *values, ROW, F.coalesce(WHY, *reasons).alias(WHY))

    def _end_in_map(self, plan: Any, children: list[Any]) -> None:
        """`mapInArrow` and `mapInPandas` end the narrow part: their rows have no number."""
        probe = self._rewrite(children[0])
        if probe is None:
            return
        rows = probe.select(*map(self._column, scala_items(children[0].output())), ROW, WHY)
        function = UserFunction((_command(plan.functionExpr()),))
        schema = f"{ROW} bigint, {WHY} string"
        if plan.nodeName() == "MapInArrow":
            self._ends.append(rows.mapInArrow(ProbedMap(function, ArrowVectors()), schema))
        else:
            self._ends.append(rows.mapInPandas(ProbedMap(function, PandasVectors()), schema))

    # -- expressions -----------------------------------------------------------------------------------------------

    def _check(self, probe: DataFrame, expressions: Any) -> DataFrame:
        """Record the first of these expressions that fails for a row."""
        whys = [
            # A struct is null only if it could not be made; the expression itself may well be null.
            F.when(
                F.isnull(self._column(self._try(self._struct(one)))), F.lit(EXPRESSION + _VIEW_NAME.sub("", one.sql()))
            )
            for one in expressions
            if one.nodeName() not in _SAFE
        ]
        return probe.withColumn(WHY, F.coalesce(WHY, *whys)) if whys else probe

    def _try(self, expression: Any) -> Any:
        return expression if expression.nodeName() in _SAFE else self._expressions.TryEval(expression)

    def _struct(self, expression: Any) -> Any:
        return self._expressions.CreateStruct.create(_sequence(expression.children(), expression))

    def _column(self, expression: Any) -> Column:
        return Column(self._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))

    def _rename(self, column: Column, attribute: Any) -> Column:
        """Returns a column as the attribute that later steps refer to."""
        expression = self._jvm.org.apache.spark.sql.classic.ExpressionUtils.expression(column._jc)
        nothing = self._jvm.scala.Option.empty()
        qualifier = attribute.qualifier()
        alias = self._expressions.Alias(
            expression, attribute.name(), attribute.exprId(), qualifier, nothing, qualifier.take(0)
        )
        return self._column(alias)

    def _unpack(self, udf: Any) -> tuple[UserFunction, list[Any]]:
        """Returns a Python function with those whose result is its only argument, and their arguments."""
        commands = [_command(udf)]
        arguments = scala_items(udf.children())
        while len(arguments) == 1 and arguments[0].nodeName() == "PythonUDF":
            commands.insert(0, _command(arguments[0]))
            arguments = scala_items(arguments[0].children())
        named = [one.nodeName() == "NamedArgumentExpression" for one in arguments]
        names = [str(one.key()) if by_name else None for one, by_name in zip(arguments, named, strict=True)]
        values = [one.value() if by_name else one for one, by_name in zip(arguments, named, strict=True)]
        return UserFunction(tuple(commands), tuple(names)), values


def _probed(udf: Any, function: UserFunction, *, explains: bool) -> UserDefinedFunction:
    """Returns a Python function of the plan as a function that reports failures."""
    returns = _parse_datatype_json_string(udf.dataType().json())
    kind = int(udf.evalType())
    if kind in _BATCH_TYPES:
        kind, vectors, iterates = _BATCH_TYPES[kind]
        fields = tuple(returns.names) if isinstance(returns, StructType) else ()
        probed: Any = ProbedBatches(function, explains, vectors, iterates, fields)
    else:
        kind, probed = PythonEvalType.SQL_BATCHED_UDF, ProbedRows(function, explains)
    return UserDefinedFunction(probed, StringType() if explains else returns, str(udf.name()), kind)


def _command(udf: Any) -> bytes:
    """Returns the pickled function of Spark's plan."""
    return bytes(udf.func().command().unsafeArray())


def _row_expressions(aggregate: Any) -> list[Any]:
    """Returns the expressions that an aggregate evaluates for each row: groups and arguments."""
    found = scala_items(aggregate.groupingExpressions())
    waiting = scala_items(aggregate.aggregateExpressions())
    while waiting:
        expression = waiting.pop()
        if expression.nodeName() == "AggregateExpression":
            found += scala_items(expression.aggregateFunction().children())
        else:
            waiting += scala_items(expression.children())
    return [one for one in found if one.references().nonEmpty()]


def _plan(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def _sequence(like: Any, *elements: Any) -> Any:
    """Returns a Scala sequence of these elements; `like` is any sequence."""
    return append_all(like.take(0), list(elements))
