"""Steering: what the user says while a response of a chain is being sampled (`response.steer`).

    steer ──▶ accepted ──▶ the response stops early, or ends anyway ──▶ a successor begins with what was said
                      └──▶ it ended with calls for the client: pending, until the create that brings their outputs

An accepted steer is held by its lane. It ends in a successor's `response.created`, in that create, or in
`response.steer.failed`, never silently.
"""

from collections.abc import Callable
from typing import Any

from engine.errors import EngineError, RequestError
from engine.frames import Steer
from engine.ids import mint_id
from engine.items import Item, Message
from engine.live import Live
from engine.parameters import Input
from engine.request import read_input
from engine.responses import Responses
from engine.server.lanes import Lanes
from engine.session import HeldSteer, Session
from engine.settings import Settings

Send = Callable[[dict[str, Any], str | None], None]


class Steering:
    """The steers of one connection; `send` puts a frame onto a lane."""

    __slots__ = ("_lanes", "_responses", "_send", "_session", "_settings")  # one for every connection

    def __init__(self, session: Session, lanes: Lanes, responses: Responses, settings: Settings, send: Send) -> None:
        self._session = session
        self._lanes = lanes
        self._responses = responses
        self._settings = settings
        self._send = send

    async def take(self, frame: Steer) -> None:
        """Accept a steer, or say why not."""
        lanes = self._session.remembered(frame.previous_response_id)
        stream_id = lanes[0] if lanes else frame.stream_id
        try:
            held = self._check(frame, stream_id if lanes else None, is_known=bool(lanes))
            if await self._responses.vet(held.items):  # which takes its time, so the response may have ended
                lanes = self._session.remembered(frame.previous_response_id)
                held = self._check(frame, stream_id, is_known=stream_id in lanes)
        except EngineError as error:
            self._fail(stream_id, frame.previous_response_id, frame.input, error)
            return
        self._session.lanes[stream_id].steers.append(held)
        self._lanes.live(stream_id).interrupt()
        self._send({"type": "response.steer.accepted", "steer": _named(held)}, stream_id)

    def _check(self, frame: Steer, stream_id: str | None, *, is_known: bool) -> HeldSteer:
        if self._session.lifecycle != "chain":
            raise RequestError("Steering is for the chain lifecycle.", code="steering_not_supported")
        if not is_known:
            raise RequestError(f"Response with id '{frame.previous_response_id}' not found.", code="response_not_found")
        response = self._lanes.live(stream_id).response
        if not response.is_open:
            raise RequestError(f"Response '{response.id}' has ended.", code="response_already_completed")
        if response.request.conversation_id is not None:
            raise RequestError("A response in a conversation cannot be steered.", code="steering_not_supported")
        if response.request.compact_threshold is not None:
            raise RequestError("A response that compacts itself cannot be steered.", code="steering_not_supported")
        if len(self._session.lanes[stream_id].steers) >= self._settings.max_steers:
            message = f"More than {self._settings.max_steers} steers wait for this response."
            raise RequestError(message, code="too_many_pending_steers")
        return HeldSteer(mint_id("steer"), response.id, frame.input, _user_messages(frame.input, self._settings))

    # --- at the response's end ---

    def wants_successor(self, stream_id: str | None) -> bool:
        """To be asked once when the lane's response has ended. False also when the steers wait, or came to nothing."""
        lane = self._session.lanes[stream_id]
        if not lane.steers:
            return False
        live = self._lanes.live(stream_id)
        if not live.can_continue:
            self._fail_all(stream_id, RequestError("The response was cut short.", code="response_not_active"))
            return False
        if stubs := _stubs(live):
            for held in lane.steers:
                waiting = {"reason": "waiting_for_required_input", "required_input": stubs, "steer": _named(held)}
                self._send({"type": "response.steer.pending"} | waiting, stream_id)
            return False
        return True

    async def start_successor(self, stream_id: str | None) -> Live:
        """A response that goes on with what was said, under the same settings. Raises EngineError: told already."""
        try:
            items = [item for held in self._session.lanes[stream_id].steers for item in held.items]
            live = await self._responses.continue_from(self._lanes.live(stream_id), items, None, "chain")
        except EngineError as error:
            self._fail_all(stream_id, RequestError(error.message, code="successor_creation_failed"))
            raise
        self._session.lanes[stream_id].steers.clear()
        return live

    def waiting_items(self, stream_id: str | None, previous_id: str | None) -> list[Item]:
        """What a create on the lane is to add to its input: the steers that wait for it. Steers of others fail."""
        held = self._session.lanes[stream_id].steers
        if any(steer.response_id != previous_id for steer in held):
            self._fail_all(stream_id, RequestError("Another response was begun.", code="response_not_active"))
        return [item for steer in held for item in steer.items]

    def _fail_all(self, stream_id: str | None, error: RequestError) -> None:
        steers = self._session.lanes[stream_id].steers
        for held in steers:
            self._fail(stream_id, held.response_id, held.input, error, held.id)
        steers.clear()

    def _fail(
        self, stream_id: str | None, response_id: str, said: Input, error: EngineError, steer_id: str | None = None
    ) -> None:
        steer = {"previous_response_id": response_id, "input": said} | ({"id": steer_id} if steer_id else {})
        body = {"code": error.code, "message": error.message, "type": error.kind, "param": error.param}
        self._send({"type": "response.steer.failed", "error": body, "steer": steer}, stream_id)


def _user_messages(said: Input, settings: Settings) -> list[Item]:
    try:
        items = read_input(said, settings)
    except RequestError as error:
        raise RequestError(error.message, param=error.param, code="invalid_input") from error
    for index, item in enumerate(items):
        if not (isinstance(item, Message) and item.role == "user"):
            raise RequestError("Only user messages can steer.", param=f"input[{index}]", code="invalid_input")
    if not items:
        raise RequestError("The input is empty.", param="input", code="invalid_input")
    return items


def _stubs(live: Live) -> list[dict[str, str]]:
    """What the client has to fill in: the outputs of the calls that the response ended with."""
    return [{"type": call.answer_type, "call_id": call.answer_key} for call in live.response.answers.unanswered()]


def _named(held: HeldSteer) -> dict[str, str]:
    return {"id": held.id, "previous_response_id": held.response_id}
