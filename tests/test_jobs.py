"""Jobs are declared as the docstring says, and every fault in a declaration is named where it is made."""

from __future__ import annotations

import dataclasses
import pickle
import re
import types
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from sqlalchemy.orm import DeclarativeBase

from brooq_sa import DeclarationError, JobBase, NewJob, OptionError, RawJob, Worker
from brooq_sa.jobs import decode, default_table, encode, table_of

MAKE: Any = type
"""Makes classes of what checkers would refuse."""


class AppJob(JobBase):
    pass


class Receipt(AppJob, topic="email.receipt", max_attempts=3, attempt_timeout="30s"):
    order_id: int
    to: str = "nobody"
    copies: list[str] = dataclasses.field(default_factory=list)

    def run(self, claim: Any) -> None:
        pass


def test_a_job_is_a_frozen_keyword_only_dataclass() -> None:
    """Fields are keyword arguments with defaults; instances are frozen, comparable, printable and picklable."""
    job = Receipt(order_id=1)
    assert (job.order_id, job.to, job.copies) == (1, "nobody", [])
    assert job == Receipt(order_id=1, to="nobody")
    assert repr(job) == "Receipt(order_id=1, to='nobody', copies=[])"
    assert pickle.loads(pickle.dumps(job)) == job
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.to = "somebody"  # type: ignore[misc]
    make: Any = Receipt
    for arguments, keywords in [((1,), {}), ((), {}), ((), {"order_id": 1, "colour": "red"})]:
        with pytest.raises(TypeError):
            make(*arguments, **keywords)


def test_a_kind_holds_what_the_class_declares() -> None:
    """The class's topic, options and handler are its kind's, which the base's registry has under the topic."""
    kind = Receipt.__kind__
    assert AppJob.registry["email.receipt"] is kind
    assert (kind.topic, kind.job_class, kind.handler, kind.is_async) == ("email.receipt", Receipt, Receipt.run, False)
    assert (kind.options.max_attempts, kind.options.attempt_timeout) == (3, timedelta(seconds=30))
    assert (kind.options.backoff_base, kind.options.priority) == (None, 0)


def test_a_base_has_a_table_of_its_own() -> None:
    """A base without more makes a MetaData with the table `job` in it (M3)."""

    class Own(JobBase):
        pass

    assert Own.__table__.fullname == "job"
    assert Own.__table__ is Own.metadata.tables["job"]
    assert Own.metadata is not AppJob.metadata


@pytest.mark.parametrize("by", ["keywords", "attributes"])
def test_a_base_names_its_table(by: str) -> None:
    """MetaData, schema and table name are class keywords or attributes (M3)."""
    shared = MetaData()
    if by == "keywords":

        class Keywords(JobBase, metadata=shared, schema="queue", table_name="work"):
            pass

        base: type[JobBase] = Keywords
    else:

        class Attributes(JobBase):
            metadata = shared
            schema = "queue"
            table_name = "work"

        base = Attributes
    assert base.metadata is shared
    assert base.__table__.fullname == "queue.work"


def test_a_base_joins_the_metadata_of_the_models() -> None:
    """With the models' MetaData the table stands beside theirs, and their naming convention changes none of it."""

    class Base(DeclarativeBase):
        metadata = MetaData(naming_convention={"ix": "ix_%(column_0_label)s", "pk": "pk_%(table_name)s"})

    class Jobs(JobBase):
        metadata = Base.metadata

    assert Base.metadata.tables["job"] is Jobs.__table__
    assert Jobs.__table__.primary_key.name == "job_pkey"
    assert {index.name for index in Jobs.__table__.indexes} == {index.name for index in AppJob.__table__.indexes}


def test_bases_may_share_a_table() -> None:
    """Two bases on one MetaData share the table, and have registries of their own."""

    class One(JobBase):
        pass

    class Two(JobBase):
        metadata = One.metadata

    class OfOne(One, topic="same"):
        pass

    class OfTwo(Two, topic="same"):
        pass

    assert One.__table__ is Two.__table__
    assert (list(One.registry), list(Two.registry)) == (["same"], ["same"])


def test_the_metadatas_own_schema_counts() -> None:
    """A MetaData with a schema puts the table there (M3)."""

    class Base(JobBase):
        metadata = MetaData(schema="app")

    class Again(JobBase):
        metadata = Base.metadata

    assert Base.__table__.fullname == "app.job"
    assert Again.__table__ is Base.__table__


def test_abstract_classes_pass_fields_options_and_run_on() -> None:
    """An abstract class has no topic; its subclasses have its fields, options and `run`, and may change them."""

    class Base(JobBase):
        pass

    class Tenant(Base, abstract=True, max_attempts=7, priority=3):
        tenant: int

        async def run(self, claim: Any) -> None:
            pass

    class Import(Tenant, topic="import"):
        path: str = "-"

    class Export(Tenant, topic="export", max_attempts=1):
        pass

    assert Import(tenant=1, path="x") != Import(tenant=2, path="x")
    assert (Import.__kind__.options.max_attempts, Export.__kind__.options.max_attempts) == (7, 1)
    assert Export.__kind__.options.priority == 3
    assert Import.__kind__.is_async
    assert sorted(Base.registry) == ["export", "import"]
    with pytest.raises(DeclarationError, match="has no topic of its own"):
        Tenant.handler(lambda job, claim: None)


def test_a_job_class_may_be_derived_from_again() -> None:
    """A subclass of a job class is a job class with more fields and a topic of its own."""

    class Base(JobBase):
        pass

    class Mail(Base, topic="mail"):
        to: str

    class Letter(Mail, topic="letter"):
        stamp: int = 1

    assert encode(Letter(to="a")) == ("letter", '{"to":"a","stamp":1}', 0)
    assert sorted(Base.registry) == ["letter", "mail"]


def test_fields_of_a_base_are_fields_of_its_jobs() -> None:
    """What a base declares, every job of it has."""

    class Base(JobBase):
        tenant: int = 0

    class Job(Base, topic="job"):
        number: int

    assert encode(Job(tenant=3, number=4)) == ("job", '{"tenant":3,"number":4}', 0)


def test_a_handler_is_registered_apart() -> None:
    """`handler` gives the function back as it is, and is what runs the class's jobs, sync or async."""

    class Base(JobBase):
        pass

    class One(Base, topic="one"):
        pass

    class Two(Base, topic="two"):
        pass

    assert [kind.handler for kind in Base.registry.values()] == [None, None]

    @One.handler
    def run_one(job: One, claim: Any) -> None:
        pass

    @Two.handler
    async def run_two(job: Two, claim: Any) -> None:
        pass

    assert One.__kind__.handler is run_one
    assert (One.__kind__.is_async, Two.__kind__.is_async) == (False, True)


def test_a_second_handler_is_refused() -> None:
    """One topic, one handler: the message names both."""

    class Base(JobBase):
        pass

    class Job(Base, topic="job"):
        def run(self, claim: Any) -> None:
            pass

    def deliver(job: Job, claim: Any) -> None:
        pass

    with pytest.raises(DeclarationError, match=r"'job' has a handler already: .*Job\.run\. Remove it, or .*deliver"):
        Job.handler(deliver)


def test_a_handler_must_be_callable() -> None:
    """What cannot be called is refused by name."""

    class Base(JobBase):
        pass

    class Job(Base, topic="job"):
        pass

    with pytest.raises(DeclarationError, match="'job' is 'deliver', which cannot be called"):
        Job.handler("deliver")  # type: ignore[call-overload]


class Unknown:
    """A class that msgspec does not know."""


@dataclasses.dataclass
class One:
    number: int


@dataclasses.dataclass
class Two:
    number: int


class HoldsUnknown(msgspec.Struct):
    inner: list[Unknown]


def declare(annotation: Any = int, *, name: str = "field", body: dict[str, Any] | None = None, **options: Any) -> Any:
    """A job class of a fresh base with one field."""

    class Base(JobBase):
        pass

    namespace = {"__annotations__": {name: annotation}, "__module__": __name__, **(body or {})}
    return MAKE("Faulty", (Base,), namespace, **{"topic": "faulty", **options})


def declare_value(kind: type[Any]) -> Any:
    """A job class of a fresh base that is a value to JSON, too."""

    class Base(JobBase):
        pass

    return MAKE("Faulty", (Base, kind), {"__annotations__": {"field": int}}, topic="faulty")


FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "no topic": (lambda: declare(topic=None), "It has no topic. Give it topic='email.send', or abstract=True"),
    "abstract with topic": (lambda: declare(abstract=True), "It is abstract and has topic 'faulty'"),
    **{
        f"topic {topic!r:.20}": (partial(declare, topic=topic), f"Topic {topic!r} is not lowercase letters")
        for topic in ["", "Email", "a b", "a_b", ".a", "a.", "a..b", "-a", "ä", "a\n", 5, "a" * 201]
    },
    "unknown option": (lambda: declare(retries=3), "There is no option 'retries'. Options are topic, max_attempts,"),
    "no attempts": (lambda: declare(max_attempts=0), "max_attempts is 0. Give an integer from 1 to 1000000."),
    "many attempts": (lambda: declare(max_attempts=10**7), "max_attempts is 10000000. Give an integer from 1 to"),
    "attempts in words": (lambda: declare(max_attempts="5"), "max_attempts is '5'. Give an integer"),
    "attempts true": (lambda: declare(max_attempts=True), "max_attempts is True. Give an integer"),
    "priority": (lambda: declare(priority=40_000), "priority is 40000. Give an integer from -32768 to 32767."),
    "bare number": (lambda: declare(attempt_timeout="30"), "attempt_timeout: Duration '30' has no unit"),
    "number": (lambda: declare(attempt_timeout=30), "attempt_timeout: Duration 30 is of type int"),
    "negative": (lambda: declare(backoff_base=timedelta(-1)), "backoff_base: Duration '-1 day, 0:00:00' is negative"),
    "zero timeout": (lambda: declare(attempt_timeout="0s"), "attempt_timeout is '0s'. Give a duration of above 0s"),
    "long timeout": (lambda: declare(max_execution_timeout="4000d"), "max_execution_timeout is '4000d'. Give a"),
    "timeouts crossed": (
        lambda: declare(attempt_timeout="2m", max_execution_timeout="1m"),
        "attempt_timeout 0:02:00 is above max_execution_timeout 0:01:00. Lower the one or raise the other.",
    ),
    "backoffs crossed": (
        lambda: declare(backoff_base="2m", backoff_max="1m"),
        "backoff_base 0:02:00 is above backoff_max 0:01:00. Lower the one or raise the other.",
    ),
    "unknown type": (lambda: declare(Unknown), "Field 'field' has a type that no payload can carry"),
    "unknown inside": (lambda: declare(HoldsUnknown), "test_jobs.Unknown'> is unknown to msgspec"),
    "unknown in a list": (lambda: declare(dict[str, list[Unknown]]), "is unknown to msgspec"),
    "object": (lambda: declare(object), "Field 'field' has a type that no payload can carry"),
    "complex": (lambda: declare(complex), "Field 'field' has a type that no payload can carry"),
    "callable": (lambda: declare(Callable[[], int]), "Field 'field' has a type that no payload can carry"),
    "integer keys": (lambda: declare(dict[int, str]), "a dict whose keys are not strings, which JSON does not have"),
    "deep integer keys": (lambda: declare(list[dict[bool, str]]), "a dict whose keys are not strings"),
    "two dataclasses": (lambda: declare(One | Two), "Field 'field' has a type that no payload can carry"),
    "list default": (
        lambda: declare(list[int], body={"field": []}),
        (
            "Field 'field' has a mutable default, [], which all jobs would share. Write field ="
            " dataclasses.field(default_factory=list)."
        ),
    ),
    "dict default": (lambda: declare(dict[str, int], body={"field": {"a": 1}}), "default_factory=dict)"),
    "set default": (lambda: declare(set[int], body={"field": {1}}), "default_factory=set)"),
    **{
        f"a {kind.__name__}": (
            partial(declare_value, kind),
            f"It derives from {kind.__name__}, so its payload would be that",
        )
        for kind in [dict, list, str, int]
    },
    "mutable object": (lambda: declare(One, body={"field": One(1)}), "mutable default"),
    **{
        f"field {name}": (partial(declare, name=name), f"A field cannot be named {name!r}")
        for name in ["run", "handler", "metadata", "registry", "__kind__"]
    },
}


@pytest.mark.parametrize("declaration, message", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_precisely(declaration: Callable[[], Any], message: str) -> None:
    """The error is a DeclarationError, and a TypeError, that names the class, the value, the rule and what to do."""
    with pytest.raises(DeclarationError, match=re.escape(message)) as caught:
        declaration()
    assert isinstance(caught.value, TypeError)
    assert "Faulty" in str(caught.value)


BASE_FAULTS: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown": (lambda: MAKE("Faulty", (JobBase,), {}, color=1), "'color' is no setting of a base"),
    "topic": (
        lambda: MAKE("Faulty", (JobBase,), {}, topic="email"),
        (
            "'topic' is no setting of a base. A direct subclass of JobBase is a base and takes metadata=, schema= and"
            " table_name=; job classes subclass the base."
        ),
    ),
    "metadata": (
        lambda: MAKE("Faulty", (JobBase,), {}, metadata="x"),
        "metadata is 'x'. Give a sqlalchemy.MetaData",
    ),
    "table taken": (
        lambda: MAKE("Faulty", (JobBase,), {}, metadata=Table("job", MetaData(), Column("id", Integer)).metadata),
        "metadata has a table 'job' already. Give the base another table_name= or schema=.",
    ),
}


@pytest.mark.parametrize("declaration, message", BASE_FAULTS.values(), ids=BASE_FAULTS)
def test_a_fault_in_a_base_is_named_precisely(declaration: Callable[[], Any], message: str) -> None:
    """The same for bases."""
    with pytest.raises(DeclarationError, match=re.escape(message)):
        declaration()


def test_a_topic_taken_twice_names_both_classes() -> None:
    """Two classes of one base cannot have one topic; the message says where each of them stands."""

    class Base(JobBase):
        pass

    class First(Base, topic="same"):
        pass

    with pytest.raises(DeclarationError) as caught:

        class Second(Base, topic="same"):
            pass

    message = str(caught.value)
    assert re.search(
        r"Second' \(.*test_jobs\.py:\d+\) takes topic 'same', which '.*First' \(.*test_jobs\.py:\d+\)", message
    )
    assert message.endswith("already has. Give one of them another topic=.")
    assert Base.registry["same"].job_class is First


def test_a_faulty_class_leaves_nothing_behind() -> None:
    """After a declaration that failed, the topic is free."""

    class Base(JobBase):
        pass

    with pytest.raises(DeclarationError):

        class Faulty(Base, topic="topic"):
            field: Unknown

    assert "topic" not in Base.registry

    class Good(Base, topic="topic"):
        pass

    assert Base.registry["topic"].job_class is Good


class Later(AppJob, topic="later"):
    inner: DefinedBelow
    more: list[DefinedBelow] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class DefinedBelow:
    number: int


def test_a_field_type_may_be_defined_further_down() -> None:
    """A type that does not exist yet when the class is declared is found at first use."""
    job = Later(inner=DefinedBelow(1), more=[DefinedBelow(2)])
    topic, text, _ = encode(job)
    assert decode(AppJob.registry, topic, text) == job


def test_encode_gives_topic_text_and_priority() -> None:
    """An enqueue sends the topic, the JSON text, and the kind's priority; a raw job has priority 0."""

    class Base(JobBase):
        pass

    class Urgent(Base, topic="urgent", priority=-5):
        number: int

    assert encode(Urgent(number=1)) == ("urgent", '{"number":1}', -5)
    assert encode(RawJob("raw", [1])) == ("raw", "[1]", 0)


def test_fields_that_are_missing_take_their_defaults() -> None:
    """A payload of before a field was added is read with the field's default; fields it has beyond are left out."""
    old = '{"order_id": 5, "gone": true}'
    assert decode(AppJob.registry, "email.receipt", old) == Receipt(order_id=5)


def test_raw_jobs_go_to_the_table_of_their_base() -> None:
    """A RawJob goes to its base's table, or to `job` in the default schema."""

    class Base(JobBase, schema="queue"):
        pass

    assert table_of(RawJob("raw", 1, base=Base)) is Base.__table__
    assert table_of(RawJob("raw", 1)) is default_table()
    assert table_of(Receipt(order_id=1)) is AppJob.__table__
    assert default_table().fullname == "job"


@pytest.mark.parametrize("topic", ["", "Email", None])
def test_a_raw_jobs_topic_is_checked(topic: Any) -> None:
    """A malformed topic is refused when the RawJob is made."""
    with pytest.raises(OptionError, match="is not lowercase letters"):
        RawJob(topic, 1)


def test_raw_jobs_compare_and_print() -> None:
    """Raw jobs are equal by topic and payload, hashable, and print shortly."""
    assert RawJob("a", [1]) == RawJob("a", [1]) != RawJob("a", [2])
    assert hash(RawJob("a", [1])) == hash(RawJob("a", [2]))
    assert RawJob("a", 1) != "a"
    assert repr(RawJob("a", {"b": 1})) == "RawJob('a', {'b': 1})"
    assert len(repr(RawJob("a", "x" * 10_000))) < 300


def test_a_new_job_keeps_its_options() -> None:
    """A NewJob is plain frozen data."""
    new = NewJob(RawJob("a", 1), "key", priority=5)
    assert (new.key, new.available_at, new.delay, new.priority) == ("key", None, None, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        new.key = "other"  # type: ignore[misc]


def test_declaring_opens_nothing_and_starts_nothing() -> None:
    """Importing and declaring start no thread and open no connection (I9)."""
    import threading

    before = threading.active_count()

    class Base(JobBase):
        pass

    class Job(Base, topic="job"):
        def run(self, claim: Any) -> None:
            pass

    assert threading.active_count() == before


@pytest.mark.parametrize(
    "handler", [lambda: None, lambda job: None, lambda job, claim, more: None], ids=["0", "1", "3"]
)
def test_a_handler_takes_a_job_and_a_claim(handler: Any) -> None:
    """A function that cannot be called with both is refused where it is registered, and named with its signature."""

    class Base(JobBase): ...

    class Handled(Base, topic="handled"): ...

    with pytest.raises(
        DeclarationError, match=r"topic 'handled' is .*<lambda>\(.*\), which cannot be called with a job"
    ):
        Handled.handler(handler)
    with pytest.raises(DeclarationError, match="Write it 'def run"):
        types.new_class("Own", (Base,), {"topic": "own"}, lambda body: body.update(run=handler))


def test_a_type_that_is_never_defined_is_a_fault_of_the_declaration() -> None:
    """The class, the name and the way out are told before any job is taken, or enqueued."""

    class Base(JobBase): ...

    class Unresolved(Base, topic="unresolved"):
        amount: "NowhereDefined"  # type: ignore[name-defined]  # noqa: F821, UP037 - that is the fault

        def run(self, claim: Any) -> None: ...

    with pytest.raises(DeclarationError, match=r"Unresolved.*annotation says 'NowhereDefined'.*TYPE_CHECKING"):
        Worker(create_engine("sqlite:///never.db"), Base)
    with pytest.raises(DeclarationError, match="NowhereDefined"):
        _ = Unresolved.__kind__.codec
