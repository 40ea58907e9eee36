// Enqueues a value as a library writes it, and prints what the broker answers: node values.mjs HOST PORT LIBRARY CASE

import net from "node:net";
import { encode, decode } from "@msgpack/msgpack";
import { Packr } from "msgpackr";

const [host, port, library, wanted] = process.argv.slice(2);
const packr = new Packr({ useRecords: false });
const careful = new Packr({ useRecords: false, encodeUndefinedAsNil: true });
const writers = {
  "@msgpack/msgpack": (value) => encode(value),
  "@msgpack/msgpack useBigInt64": (value) => encode(value, { useBigInt64: true }),
  msgpackr: (value) => packr.pack(value),
  "msgpackr encodeUndefinedAsNil": (value) => careful.pack(value),
};
const values = {
  fraction: { price: 12.5 },
  text: { price: "12.50" },
  now: { at: 1767225600000 },
  bigint: { at: BigInt(1767225600000) },
  date: { at: new Date(1767225600000) },
  undefined: { at: undefined },
};

const socket = net.connect(Number(port), host);
const say = (t, rid, p) => {
  const body = writers[library]({ v: 2, t, rid, p });
  const head = Buffer.alloc(4);
  head.writeUInt32BE(body.length);
  socket.write(Buffer.concat([head, body]));
};
let received = Buffer.alloc(0);
socket.on("data", (data) => {
  received = Buffer.concat([received, data]);
  while (received.length >= 4 && received.length >= 4 + received.readUInt32BE()) {
    const size = received.readUInt32BE();
    const { t, rid, p } = decode(received.subarray(4, 4 + size));
    received = received.subarray(4 + size);
    if (t === 102 || rid === "3") {
      console.log(JSON.stringify({ event: t === 102 ? "refused" : "stored", rid, msg: p.msg ?? "" }));
      socket.end();
    }
  }
});
say(1, "1", { explain: true });
say(2, "2", {});
say(14, "3", { q: "prices", job_payload: values[wanted] });
