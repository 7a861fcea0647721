"""The same ServerApp and ClientApp in one process: no Ray, no SuperLink, milliseconds a round."""

import copy
import io
import pickle
import uuid
from collections.abc import Callable, Iterable, Mapping

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from common.config import Scalar

SERVER_NODE, FIRST_CLIENT_NODE = 1, 1000
NODE_UNAVAILABLE, CLIENT_RAISED = 5, 2  # Flower's error codes


class LocalGrid(Grid):
    """A Flower grid whose N nodes are calls of a ClientApp.

    Behaves as Flower's simulation does: each message and context is the client's own copy, an
    exception becomes an error reply, the client's state is kept only when it succeeded.

    Args:
        client_app: the ClientApp that every node runs.
        run_config: the run's flat configuration, seen by every client.
        node_configs: one for each node; `partition-id` and `num-partitions` are filled in.
    """

    def __init__(
        self,
        client_app: ClientApp,
        run_config: Mapping[str, Scalar],
        node_configs: list[dict[str, Scalar]],
    ) -> None:
        identify_process()
        self._app = client_app
        self._contexts = {
            FIRST_CLIENT_NODE + i: Context(
                run_id=1,
                node_id=FIRST_CLIENT_NODE + i,
                node_config={"partition-id": i, "num-partitions": len(node_configs)} | node_config,
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for i, node_config in enumerate(node_configs)
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Nothing to set: one grid, one run."""

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        content = None
        for message in messages:
            if message.content is not content:  # many are sent the same
                content = message.content
                copied = copier(content)
            # As Flower's own grids do, so that the sender can match the reply.
            message.metadata.__dict__["_message_id"] = str(uuid.uuid4())
            ids.append(message.metadata.message_id)
            self._replies[ids[-1]] = self._call(message, copied())
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run the clients one after the other; a client in this process cannot be timed out."""
        return self.pull_messages(self.push_messages(messages))

    def _call(self, message: Message, content: RecordDict) -> Message:
        metadata: Metadata = message.metadata
        request = Message(  # type: ignore[call-overload]  # as Flower's own grids make it
            content, metadata=copy.copy(metadata)
        )
        context = self._contexts.get(metadata.dst_node_id)
        if context is None:
            return Message(Error(NODE_UNAVAILABLE, "no such node"), reply_to=request)
        mine = Context(
            context.run_id,
            context.node_id,
            dict(context.node_config),
            copy.deepcopy(context.state),
            dict(context.run_config),
        )
        try:
            reply = self._app(request, mine)
            if reply.metadata.reply_to_message_id != metadata.message_id:
                raise ValueError("a ClientApp must return Message(..., reply_to=message)")
            if mine.run_config != context.run_config:
                raise ValueError("a ClientApp must not change run_config")
        except Exception as error:  # whatever a client raises, the others go on
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(CLIENT_RAISED, reason), reply_to=request)
        self._contexts[metadata.dst_node_id] = mine
        return reply


class _Pickler(pickle.Pickler):
    """Sets bytes aside in `shared`."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.shared: list[bytes] = []

    def persistent_id(self, part: object) -> int | None:
        if not isinstance(part, bytes):
            return None
        self.shared.append(part)
        return len(self.shared) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, shared: list[bytes]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._shared = shared

    def persistent_load(self, index: int) -> bytes:
        return self._shared[index]


def copier(content: RecordDict) -> Callable[[], RecordDict]:
    """Makes deep copies of a content, as it is now, that share nothing but bytes.

    Those nobody can change. It takes a third of the time of copy.deepcopy, which with hundreds of
    clients asked for a loss in a round is a part of the run.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(content)

    def made() -> RecordDict:
        copied: RecordDict = _Unpickler(file.getvalue(), pickler.shared).load()
        return copied

    return made


def identify_process() -> None:
    """Give this process the identity that Flower gives its own, without which no Message is made.

    `TaskIdentity` and `Run`, of the Grid's interface, are all that the project uses of Flower's
    private `supercore`.
    """
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, SERVER_NODE, 1


def run_in_process(
    server_app: ServerApp,
    client_app: ClientApp,
    run_config: Mapping[str, Scalar],
    node_configs: list[dict[str, Scalar]],
) -> None:
    """Run a ServerApp on a LocalGrid; what the ServerApp raises is raised here."""
    grid = LocalGrid(client_app, run_config, node_configs)
    context = Context(
        run_id=1,
        node_id=SERVER_NODE,
        node_config={},
        state=RecordDict(),
        run_config=dict(run_config),
    )
    server_app(grid=grid, context=context)
