"""The bugs: each replaces one piece of text that occurs once in its file."""

from __future__ import annotations

from dataclasses import dataclass

#: Arguments of pytest. A suite takes seconds, so that all bugs take minutes.
SUITES = {
    "engines": [
        "tests/conformance/engines",
        "--ignore=tests/conformance/engines/test_missing.py",
    ],
    "turn": ["tests/simulation/turn"],
    # What a short simulation meets too rarely.
    "turns": ["tests/doors/resp/test_turns.py"],
    "throttles": ["tests/integration/test_closed_throttles.py"],
    "store": ["tests/conformance/kv", "--ignore=tests/conformance/kv/test_rocks_full_disk.py"],
}


@dataclass(frozen=True, slots=True)
class Bug:
    name: str
    file: str
    before: str
    after: str
    suite: str = "engines"


BUGS = (
    Bug(
        "a late ack is accepted",
        "engine/work/settle.py",
        "    if claim_ids.count(lease.terms.claim_id) < count or set(map(type, claim_ids)) != {int}:\n        return None\n",
        "",
    ),
    Bug(
        "a settle counts twice in one call",
        "engine/work/settle.py",
        "        if number in self._over or lease.terms.claim_id != claim_id:\n",
        "        if lease.terms.claim_id != claim_id:\n",
    ),
    Bug("an answer does not wait for the sync", "engine/engine.py", "self.store.sync()\n", "pass\n"),
    Bug(
        "a bucket is full again when it is configured",
        "schedule/throttle.py",
        "return Bucket(rate, burst, min(burst, self.tokens_at(now_ms)), max(now_ms, self.at_ms))",
        "return Bucket(rate, burst, burst, max(now_ms, self.at_ms))",
    ),
    Bug(
        "the states of a chunk are not written",
        "store/rows.py",
        '        batch.puts.append((_STATES, key, bytes(chunk.states or b"")))\n        chunk.has_states_row = True\n',
        "        chunk.has_states_row = True\n",
    ),
    Bug(
        "a window of a dedup key is forgotten",
        "records/state.py",
        "return self.until_ms == 0 or self.until_ms > now_ms",
        "return self.until_ms == 0",
    ),
    Bug(
        "a lease is not written",
        "store/rows.py",
        "            puts.append((_LEASES, _key_of_two(lease.terms.home_id, group), _encode(lease.row())))\n",
        "                pass\n",
    ),
    Bug(
        "a completion is not counted",
        "engine/reduce/leases.py",
        "    counts.leased -= len(numbers)\n    whole = ",
        "    whole = ",
    ),
    Bug(
        "the number of a commit is given again",
        "engine/engine.py",
        "        self._commit = commit\n",
        "",
    ),
    Bug(
        "a former owner may write",
        "store/kv/fence.py",
        "        if epoch != self.epoch:\n            raise StaleEpoch(epoch, self.epoch)\n",
        "",
    ),
    Bug(
        "a place is given twice",
        "engine/transaction.py",
        "        self._place += 1\n        return self._place - 1\n",
        "        self._place |= 1\n        return self._place\n",
    ),
    Bug(
        "a row that is put stays hidden from scans",
        "store/kv/rocks_database.py",
        "                    ranges.fill(key)\n",
        "                    pass\n",
        "store",
    ),
    Bug(
        "a sync does not reach the disk",
        "store/kv/rocks.py",
        "            self._database.db.flush_wal(True)\n",
        "            pass\n",
        "store",
    ),
    Bug(
        "the fence is not stored with the rows",
        "store/kv/rocks.py",
        "        put(FENCE_KEY, fence.packed())\n",
        "",
        "store",
    ),
    Bug(
        "a completed message comes back at the next open",
        "engine/reduce/chunk_ends.py",
        "    mark(memory, chunk, members, GONE)\n",
        "    memory.changes.chunks.add(chunk)\n",
    ),
    Bug(
        "a message that is gone keeps its own row",
        "store/rows.py",
        "            batch.delete(Table.OWN, _key_of_two(queue_id, number))\n",
        "            pass\n",
    ),
    Bug(
        "a lease that ended stays stored",
        "store/rows.py",
        "            deletes.append((_LEASES, _key_of_two(lease.terms.home_id, group)))\n",
        "                pass\n",
    ),
    Bug(
        "tokens that a claim took are not stored",
        "engine/reduce/leases.py",
        "            memory.changes.buckets.update(plan.buckets)\n",
        "            pass\n",
    ),
    Bug(
        "a token is not taken",
        "schedule/throttle.py",
        "            self._tokens[throttle_key] = max(0.0, tokens - 1)\n",
        "            self._tokens[throttle_key] = tokens\n",
    ),
    Bug(
        "a configured weight does not reach the backlog",
        "schedule/drr.py",
        "            found.weight = weight\n",
        "            pass\n",
    ),
    Bug(
        "a delivery that never began is charged when its lease ends",
        "engine/moves.py",
        "    if lease.terms.started and tx.memory.is_first_of_run(number):\n",
        "    if tx.memory.is_first_of_run(number):\n",
    ),
    Bug(
        "a failure is not counted",
        "engine/moves.py",
        "    attempts = state.attempts + 1\n",
        "    attempts = max(1, state.attempts)\n",
    ),
    Bug(
        "a redriven message keeps its former order in its stream",
        "engine/moves.py",
        "        seq=place if stream else 0,\n",
        "        seq=0,\n",
    ),
    Bug(
        "a redriven message loses its progress",
        "engine/moves.py",
        "        progress=state.progress,\n        carry=state.carry,\n        failures=state.failures,\n",
        "        carry=state.carry,\n        failures=state.failures,\n",
    ),
    Bug(
        "a dead letter forgets its queue",
        "engine/moves.py",
        "        source_queue_id=queue.record.queue_id,\n        dead_since_ms=tx.now_ms,\n",
        "        source_queue_id=0,\n        dead_since_ms=tx.now_ms,\n",
    ),
    Bug(
        "a claim id comes again after a power cut",
        "records/ids.py",
        "    return epoch << 44 | commit << BLOCK_SHIFT | index\n",
        "    return commit << BLOCK_SHIFT | index\n",
    ),
    Bug(
        "a dedup key outlives its message",
        "engine/reduce/lives.py",
        "        memory.changes.dedup[chunk.queue_id, key] = None\n",
        "        pass\n",
    ),
    Bug(
        "a stream is overtaken by its second message",
        "engine/streams.py",
        "            if name and (name in by_name or waits(number)):\n",
        "            if name and waits(number):\n",
    ),
    Bug(
        "a failed write leaves its changes in memory",
        "engine/engine.py",
        "                self._reload(_touched(self.memory))\n",
        "                pass\n",
    ),
    Bug(
        "a refusal in the middle of a request is for that request alone",
        "engine/engine.py",
        "        if tx.lost is None and (not is_refusal or tx.has_changed):\n",
        "        if tx.lost is None and not is_refusal:\n",
    ),
    Bug(
        "an extension is only in memory",
        "engine/reduce/leases.py",
        "    memory.changes.new_leases[terms.group] = lease\n",
        "    if not memory.held or lease.terms.claim_id == terms.group:\n        memory.changes.new_leases[terms.group] = lease\n",
    ),
    Bug(
        "a member of a numbered claim can be settled alone",
        "engine/work/settle.py",
        "    if lease is None or lease.is_numbered:\n",
        "    if lease is None:\n",
    ),
    Bug(
        "a remembered answer has a second effect",
        "engine/work/remembered.py",
        "    if number in session.rows:\n",
        "    if number in session.rows and not isinstance(request, Settle):\n",
    ),
    Bug(
        "a commit is written twice",
        "store/kv/fence.py",
        "        if self.commit_epoch != epoch or commit > self.commit:\n            return False\n",
        "        if self.commit_epoch != epoch or commit >= self.commit:\n            return False\n",
        "store",
    ),
    Bug(
        "a batch has a hole: its later messages are never handed out",
        "engine/reduce/chunks.py",
        "    add_to_lanes(memory, queue, chunk, entering)\n",
        "    add_to_lanes(memory, queue, chunk, entering[:30])\n",
    ),
    Bug(
        "a late failure is accepted",
        "engine/work/settle.py",
        "        if number in self._over or lease.terms.claim_id != claim_id:\n",
        "        if number in self._over:\n",
    ),
    Bug(
        "a failed write of a stream alone stays in memory",
        "engine/engine.py",
        "    for rows in (*by_queue, changes.ended_windows, memory.touched_streams):\n",
        "    for rows in ():\n",
    ),
    Bug(
        "a redriven message of a reopened stream is known twice",
        "engine/streams.py",
        "            stream.cold_from = messages.seq_of(number) + 1\n",
        "            stream.cold_from = number + 1\n",
    ),
    Bug(
        "messages that return to a stream together keep their own keys",
        "engine/moves.py",
        "        lane = pack_lane(opener if key is None else key, lane_throttle_keys(lane))\n",
        "        lane = lane if key is None else pack_lane(key, lane_throttle_keys(lane))\n",
    ),
    Bug(
        "a durable answer leaves before the sync",
        "server/resp/door.py",
        "            if done.commit is not None and call.is_durable:\n",
        "            if False:\n",
        "turn",
    ),
    Bug(
        "an answer is not remembered in the transaction of its effect",
        "engine/work/remembered.py",
        "            tx.add(fact)\n",
        "            pass\n",
        "turn",
    ),
    Bug(
        "a short way does not remember its answer",
        "engine/engine.py",
        "                facts += facts_at(place, caller, request, answer, now_ms)\n",
        "                pass\n",
        "turn",
    ),
    Bug(
        "a number is carried out again",
        "engine/work/remembered.py",
        "    if number in session.rows:\n        return _recall(tx, answer_key(key, session.rows[number]), request)\n",
        "",
        "turn",
    ),
    Bug(
        "a late copy of an answered request is carried out",
        "engine/work/remembered.py",
        "    if number <= session.arrived:\n        raise RequestExpired(name, number, session.arrived)\n",
        "",
        "turn",
    ),
    Bug(
        "an answer that has not arrived is forgotten",
        "engine/sessions.py",
        "    gone = session.up_to(arrived)\n",
        "    gone = session.up_to(arrived + 1)\n",
        "turn",
    ),
    Bug(
        "a copy of a claim that waits does not get its messages",
        "server/turn.py",
        "        if call.answer:\n            self.waiting.wake_copies(call)\n",
        "",
        "turns",
    ),
    Bug(
        "a claim that waits is lost with the transaction of others",
        "server/turn.py",
        "                    self.waiting.resume(waits)\n",
        "                    self.waiting.end(waits.call)\n",
        "turn",
    ),
    Bug(
        "a claim that is woken does not run again",
        "server/waiting_calls.py",
        "                self.owner.tell(self)\n",
        "                pass\n",
        "turn",
    ),
    Bug(
        "a claim that outlived a lost transaction is over twice",
        "server/waiting_calls.py",
        "            waits.due_ms = -1\n            if waits",
        "            if waits",
        "turns",
    ),
    Bug(
        "a repeated claim whose leases are over waits and keeps others waiting",
        "server/turn.py",
        "                must_end = self.waiting.must_end or self._engine.was_carried_out(call.caller)\n",
        "                must_end = self.waiting.must_end\n",
        "turn",
    ),
    Bug(
        "deliveries are put back under a repeat of their claim",
        "server/resp/connection.py",
        '        if self.caller.session is not None or getattr(self.request, "token", None):\n',
        "        if False:\n",
        "turn",
    ),
    Bug(
        "a request of a lost transaction is answered as if it were written",
        "server/turn.py",
        "                call.answer, call.error = None, lost\n",
        "                call.error = None if call.answer else lost\n",
        "turn",
    ),
    Bug(
        "a return counts as an attempt",
        "engine/moves.py",
        "        state, returns=state.returns + 1, progress",
        "        state, returns=state.returns + 1, attempts=state.attempts + 1, progress",
        "throttles",
    ),
    Bug(
        "a message that closes its throttle key comes back without end",
        "engine/moves.py",
        " or state.returns >= bounds.max_returns:\n",
        ":\n",
        "throttles",
    ),
    Bug(
        "a shorter closing opens a throttle key earlier",
        "decide/closing.py",
        "    later = new if new.until_ms > before.until_ms else before\n",
        "    later = new\n",
        "throttles",
    ),
    Bug(
        "a probe that is given back counts as an answer",
        "schedule/closed.py",
        "        if is_answer:\n",
        "        if ended:\n",
        "throttles",
    ),
    Bug(
        "a closed throttle key is open once its time is over",
        "schedule/closed.py",
        "        self.at_once = 1\n",
        "        self.at_once = 1 << 20\n",
        "throttles",
    ),
    Bug(
        "a short claim sends out probes that nobody counts",
        "engine/short_ways.py",
        "    if memory.buckets.closed and memory.buckets.has_probes(now_ms):\n        return None\n",
        "",
        "throttles",
    ),
    Bug(
        "the end of a probe wakes nobody",
        "engine/reduce/throttles.py",
        "            queue.schedule.look_again(throttle_key)\n",
        "            pass\n",
        "throttles",
    ),
    Bug(
        "a probe that is gone with its queue is out for ever",
        "engine/reduce/throttles.py",
        "            return _ended(memory, sorted(gone - memory.held.keys()), is_answer=False)\n",
        "            return False\n",
        "throttles",
    ),
)
