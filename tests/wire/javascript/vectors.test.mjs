/** The package's codecs and cores against the published bytes, without a socket. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const [dist, vectorsFile] = [process.env.FIVEWIRE_DIST, process.env.FIVEWIRE_VECTORS];
const load = (name) => import(pathToFileURL(`${dist}/${name}.js`).href);
const vectors = JSON.parse(readFileSync(vectorsFile, "utf8"));
const blip = await load("blipmq-core");
const sspq = await load("sspq-core");
const overhop = await load("overhop-codec");
const overhopCore = await load("overhop-core");
const peer = await load("peerbus-core");
const fivewire = await load("index");
const { seed, more } = vectors.blipmq;

test("BlipMQ frames are the published bytes", () => {
  assert.equal(blip.encodeHello(1, true).toString("hex"), seed["HELLO v1 cid 1"]);
  assert.equal(blip.encodeAuth(2, "dev-key", true).toString("hex"), seed["AUTH dev-key cid 2"]);
  assert.equal(blip.encodeSubscribe(3, "demo", 1, true).toString("hex"), seed["SUBSCRIBE demo qos1 cid 3"]);
  assert.equal(blip.encodePublish(4, "demo", "hi", 1, true).toString("hex"), seed["PUBLISH demo qos1 hi cid 4"]);
  assert.equal(blip.encodeOf(blip.Kind.ACK, 3, 42, true).toString("hex"), seed["ACK sub 42 cid 3"]);
  assert.equal(blip.encodeOf(blip.Kind.POLL, 5, 42, true).toString("hex"), more["POLL sub 42 cid 5"]);
});

test("a delivery and a refusal are read however the stream is cut", async () => {
  const core = new blip.BlipMQCore("key", false);
  const polled = core.poll(42, 1);
  const pong = Buffer.from(core.outgoing.take().subarray(-13));
  pong[4] = blip.Kind.PONG;
  const bytes = Buffer.concat([Buffer.from(more["delivery qos1 tag 1 demo hi"] + more["NACK 404 cid 12345"], "hex"), pong]);
  for (const byte of bytes) core.receive(Buffer.from([byte]));
  const [message] = await polled;
  assert.equal(`${message.topic} ${message.body} ${message.tag} ${message.subscription}`, "demo hi 1 42");
  await assert.rejects(core.flush(), (error) => error instanceof fivewire.NackError && error.code === 404);
});

test("a confirmed publish that is refused rejects alone", async () => {
  const core = new blip.BlipMQCore("key", false);
  const [bad, good] = [core.publish("a", "1", 1, true), core.publish("a", "2", 1, true)];
  await Promise.resolve();
  const sent = core.outgoing.take();
  const nack = Buffer.from(more["NACK 401 unauthenticated cid 9"], "hex");
  sent.copy(nack, 5, 5, 13);
  const pong = Buffer.from(sent.subarray(-13));
  pong[4] = blip.Kind.PONG;
  core.receive(Buffer.concat([nack, pong]));
  await assert.rejects(bad, fivewire.NackError);
  await good;
  assert.equal(core.hasUnconfirmed, false);
});

test("publishes that were not confirmed are sent again by consent alone", async () => {
  for (const resend of [false, true]) {
    const core = new blip.BlipMQCore("key", resend);
    const confirmed = core.publish("a", "1", 1, true);
    const frame = core.outgoing.take().toString("hex");
    core.lost(new fivewire.ConnectionLost("cut"), false);
    core.outgoing.clear();
    await core.resume();
    if (resend) assert.ok(core.outgoing.take().toString("hex").startsWith(frame));
    else {
      assert.equal(core.outgoing.size, 0);
      await assert.rejects(confirmed, fivewire.ConnectionLost);
    }
  }
});

test("SSPQ packets are the published bytes", () => {
  assert.equal(sspq.packet(sspq.Packet.SEND, 1, "hello").toString("hex"), vectors.sspq["SEND retries 1 hello"]);
  for (const name of ["RECEIVE", "CONFIRM", "DEAD_RECEIVE", "NO_RECEIVE"]) {
    assert.equal(sspq.packet(sspq.Packet[name]).toString("hex"), vectors.sspq[name]);
  }
});

test("Overhop envelopes are the published bytes", () => {
  const { Type, encodeEnvelope } = overhop;
  assert.equal(encodeEnvelope(Type.HELLO, "rid-1", {}).toString("hex"), vectors.overhop["HELLO rid-1"]);
  assert.equal(encodeEnvelope(Type.REGISTER, "r2", {}).toString("hex"), vectors.overhop["REGISTER r2"]);
  assert.equal(encodeEnvelope(Type.PING, "rid-ping", {}).toString("hex"), vectors.overhop["PING rid-ping"]);
  const core = new overhopCore.OverhopCore(false, 1 << 23);
  for (const name of ["zero length: close", "8 MiB + 1 header: close"]) {
    assert.throws(() => core.receive(Buffer.from(vectors.overhop[name], "hex")), fivewire.ProtocolViolation);
  }
});

test("whole numbers of 64 bits survive, everything else is refused with its path", () => {
  const { encodeEnvelope, decodeEnvelope } = overhop;
  const p = { a: [0, -1, 2 ** 32, -(2 ** 40), Number.MAX_SAFE_INTEGER, 2n ** 63n - 1n, -(2n ** 63n)], b: { c: null, d: "✓" } };
  assert.deepEqual(decodeEnvelope(encodeEnvelope(14, "1", p)).p, p);
  const circle = [];
  circle.push(circle);
  for (const [value, path] of [
    [{ items: [1, { price: 1.5 }] }, "items[1].price"], [{ n: 2 ** 53 }, "n"], [{ n: NaN }, "n"], [{ n: 2n ** 63n }, "n"],
    [{ when: new Date() }, "when"], [{ list: [undefined] }, "list[0]"], [{ half: "\ud800" }, "half"], [{ f: () => 1 }, "f"],
  ]) {
    assert.throws(() => encodeEnvelope(14, "1", value), (error) => error instanceof fivewire.Unencodable && error.path === path);
  }
  assert.throws(() => encodeEnvelope(14, "1", { circle }), fivewire.Unencodable);
});

test("a key named __proto__ is a key like others", () => {
  const { encodeEnvelope, decodeEnvelope } = overhop;
  const text = '{"notproto_":3,"__proto__":{"ordinary9":2,"__proto__":1}}';
  const { p } = decodeEnvelope(encodeEnvelope(14, "1", { job_payload: JSON.parse(text) }));
  assert.equal(JSON.stringify(p.job_payload), text);
  assert.equal(Object.getPrototypeOf(p.job_payload), Object.prototype);
});

test("a listener that throws harms neither the others nor the client", async () => {
  const warnings = [];
  const warn = (warning) => warnings.push(warning.message);
  process.on("warning", warn);
  const client = new fivewire.OverhopClient({ port: 1 });
  const heard = [];
  client.on("closed", () => {
    throw new Error("a bad listener");
  });
  client.on("closed", async () => {
    throw new Error("a bad promise");
  });
  client.on("closed", () => heard.push("closed"));
  await client.close();
  await new Promise(setImmediate);
  process.off("warning", warn);
  assert.deepEqual(heard, ["closed"]);
  assert.deepEqual(warnings.sort(), ["a bad listener", "a bad promise"]);
});

test("peerbus signatures are the published ones, in every spelling", () => {
  const { secret, hmac } = vectors.peerbus;
  const fields = JSON.parse(hmac[0].envelope);
  for (const each of hmac) {
    const isBroadcast = each["same, to * kind broadcast, body"] !== undefined;
    const given = each["same, body"] ?? each["same, to * kind broadcast, body"] ?? each["same, canonical body (as Go escapes it)"];
    const body = given === undefined ? '{"hello":"world"}' : given === "(empty)" ? "" : given;
    const own = isBroadcast ? { ...fields, to: "*", kind: "broadcast" } : fields;
    assert.equal(peer.sign(own, body, secret), each.hmac);
    const text = `${peer.canonical(own, body).slice(0, -1)},"hmac":"${each.hmac}"}`;
    assert.ok(peer.verify(text, peer.keyOf(secret)));
    assert.ok(!peer.verify(text.replace("alice", "mallory"), peer.keyOf(secret)));
  }
});
