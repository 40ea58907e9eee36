// A peer, written from docs/protocols/peerbus.md alone.
//
//   node peer.mjs URL TOKEN NAME SECRET
//
// Commands on standard input and events on standard output, a JSON object a line. A message is consumed when it has been
// printed, unless its body has "hold": then {"do":"finish","id":ID} consumes it. With "cut" in its body the connection is cut
// after it was consumed and before it is acknowledged.

import { createHmac, randomUUID, timingSafeEqual } from "node:crypto";
import { createInterface } from "node:readline";
import WebSocket from "ws";

const [url, token, name, secret] = process.argv.slice(2);
const FIELDS = ["protocol_version", "id", "from", "to", "ts", "source", "kind"];
const MOST_REMEMBERED = 10_000;

const say = (event, more = {}) => process.stdout.write(JSON.stringify({ event, ...more }) + "\n");

// Signatures.

const escaped = (text) =>
  text.replace(/[<>&\u2028\u2029]/g, (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"));

const written = (string) => escaped(JSON.stringify(string.toWellFormed()));

const compact = (json) => json.replace(/("(?:[^"\\]|\\.)*")|[ \t\n\r]+/g, (_, string) => string ?? "");

function canonical(envelope, body) {
  const members = FIELDS.map((field) => `"${field}":${written(envelope[field] ?? "")}`);
  return `{${members.join(",")},"body":${escaped(compact(body)) || "null"}}`;
}

const digest = (form) => createHmac("sha256", secret).update(form).digest();

function verified(text, envelope) {
  if (!/^[0-9a-f]{64}$/i.test(envelope.hmac ?? "")) return false;
  return timingSafeEqual(digest(canonical(envelope, memberText(text, "body") ?? "null")), Buffer.from(envelope.hmac, "hex"));
}

function signed(id, to, body) {
  const kind = to === "*" ? "broadcast" : "msg";
  const envelope = {
    protocol_version: "v1", id, from: name, to, ts: new Date().toISOString(), source: "peer-bus", kind,
  };
  const form = canonical(envelope, body);
  return `${form.slice(0, -1)},"hmac":"${digest(form).toString("hex")}"}`;
}

// The text of a member of an object, as it stands there; of equal keys the last counts.

function memberText(object, wanted) {
  let found, at = skip(object, object.indexOf("{") + 1);
  while (object[at] === '"') {
    const end = valueEnd(object, at), key = JSON.parse(object.slice(at, end));
    const start = skip(object, skip(object, end) + 1), stop = valueEnd(object, start);
    if (key === wanted) found = object.slice(start, stop);
    at = skip(object, skip(object, stop) + 1);
  }
  return found;
}

function skip(text, at) {
  while (" \t\n\r".includes(text[at]) && at < text.length) at++;
  return at;
}

function valueEnd(text, at) {
  let depth = 0;
  for (;; at++) {
    if (text[at] === '"') {
      while (text[++at] !== '"') if (text[at] === "\\") at++;
      if (!depth) return at + 1;
    } else if ("{[".includes(text[at])) depth++;
    else if ("}]".includes(text[at])) {
      if (!depth) return at; // the object that this value ends with
      if (!--depth) return at + 1;
    } else if (!depth && ", \t\n\r".includes(text[at])) return at;
  }
}

// The connection.

class Peer {
  unconfirmed = []; // envelopes that no answer has confirmed
  asked = []; // for each request, how many of them it confirms
  consumed = new Set();
  held = new Map();
  pause = 100;

  connect() {
    this.registered = false;
    this.socket = new WebSocket(url, { perMessageDeflate: false, maxPayload: 1 << 20 });
    this.socket.on("open", () => this.write({ type: "register", token, name }));
    this.socket.on("message", (data, binary) => binary || this.take(data.toString()));
    this.socket.on("error", () => {}); // "close" follows
    this.socket.on("close", (code, reason) => this.closed(code, reason.toString()));
  }

  write(frame) {
    this.socket.send(JSON.stringify({ protocol_version: "v1", ...frame }));
  }

  closed(code, reason) {
    say("closed", { code, reason });
    if (reason === "taken over by a new connection" || (!this.registered && code === 1008)) process.exit(1);
    setTimeout(() => this.connect(), this.pause * (0.5 + Math.random() / 2));
    this.pause = Math.min(2 * this.pause, 5000);
  }

  take(text) {
    const frame = JSON.parse(text);
    if (!this.registered) this.begin(frame);
    else if (frame.type === "peers") this.answered(frame.names);
    else if (frame.type === "deliver") this.delivered(text, frame);
  }

  begin(frame) {
    if (frame.type !== "peers") return this.socket.terminate();
    this.registered = true;
    this.pause = 100;
    say("registered", { names: frame.names });
    for (const text of this.unconfirmed) this.socket.send(text);
    const again = this.asked.length;
    this.asked = [];
    if (again || this.unconfirmed.length) this.ask();
  }

  send(to, body, id = randomUUID()) {
    const text = signed(id, to, body);
    this.unconfirmed.push(text);
    if (this.registered) this.socket.send(text);
  }

  ask() {
    this.asked.push(this.unconfirmed.length);
    if (this.registered) this.write({ type: "peers" });
  }

  answered(names) {
    const count = this.asked.shift();
    this.unconfirmed.splice(0, count);
    this.asked = this.asked.map((others) => others - count);
    say("confirmed", { count, names });
  }

  delivered(text, frame) {
    const key = frame.delivery_key, envelope = frame.envelope;
    if (typeof key !== "string" || !key || envelope.protocol_version !== "v1") return;
    const { id, from, to } = envelope;
    const own = memberText(text, "envelope");
    if (!verified(own, envelope)) return say("forged", { id });
    if (this.held.has(id)) return say("held already", { id });
    if (this.consumed.has(id)) {
      say("duplicate", { id });
      return this.write({ type: "ack", id: key });
    }
    say("message", { id, from, to, key, body: memberText(own, "body") ?? "null" });
    if (envelope.body?.hold) this.held.set(id, key);
    else this.consume(id, key, Boolean(envelope.body?.cut));
  }

  consume(id, key, cut) {
    this.consumed.add(id);
    if (this.consumed.size > MOST_REMEMBERED) this.consumed.delete(this.consumed.values().next().value);
    if (cut) this.socket.terminate();
    else this.write({ type: "ack", id: key });
  }

  finish(id) {
    const key = this.held.get(id);
    this.held.delete(id);
    this.consume(id, key, false);
  }
}

const peer = new Peer();
const commands = {
  send: ({ to, body, id }) => peer.send(to, body, id),
  ask: () => peer.ask(),
  cut: () => peer.socket.terminate(),
  finish: ({ id }) => peer.finish(id),
};

peer.connect();
createInterface({ input: process.stdin })
  .on("line", (line) => {
    const command = JSON.parse(line);
    commands[command.do](command);
  })
  .on("close", () => process.exit(0));
