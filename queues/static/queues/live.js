// Keeps a page of something that changes by itself up to date, in place: only what differs is replaced, so focus,
// selection and what was opened stay. A list that is being pointed at or chosen from keeps its rows and their order.
// The page says how often it is to be fetched again, and when no more.
"use strict";

const PATIENCE = 10000; // milliseconds
let every = Number(document.currentScript.dataset.every) * 1000;
let planned = 0;

function identity(node) {
  return [node.nodeName, node.id, node.getAttribute?.("name")].join();
}

function update(old, now) {
  if (identity(old) !== identity(now)) {
    old.replaceWith(document.importNode(now, true));
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.nodeValue !== now.nodeValue) old.nodeValue = now.nodeValue;
  } else if (!old.matches("input, select, textarea, .actions")) { // these are the user's and the admin's own scripts'
    updateAttributes(old, now);
    if (old.matches("#result_list > tbody")) updateRows(old, now);
    else updateChildren(old, now);
  }
}

function updateAttributes(old, now) {
  const selectable = old.matches("tr:has(.action-select)"); // its class says whether it is selected
  for (const name of new Set([...old.getAttributeNames(), ...now.getAttributeNames()])) {
    const keeps = name === "open" || (name === "class" && selectable);
    if (keeps || old.getAttribute(name) === now.getAttribute(name)) continue;
    if (now.hasAttribute(name)) old.setAttribute(name, now.getAttribute(name));
    else old.removeAttribute(name);
  }
}

function updateChildren(old, now) {
  const before = [...old.childNodes];
  const after = [...now.childNodes];
  before.slice(after.length).forEach((node) => node.remove());
  after.forEach((node, n) => {
    if (n < before.length) update(before[n], node);
    else old.append(document.importNode(node, true));
  });
}

function inUse(list) {
  const chosen = list.querySelector("input:checked") !== null;
  return chosen || list.matches(":hover") || list.contains(document.activeElement);
}

function key(row) {
  return row.querySelector("th a")?.getAttribute("href") ?? row.querySelector("input")?.value ?? row.textContent;
}

function updateRows(list, now) {
  const known = new Map([...list.rows].map((row) => [key(row), row]));
  const fresh = [...now.rows].map((row) => {
    const old = known.get(key(row));
    if (old) update(old, row);
    return old ?? document.importNode(row, true);
  });
  if (!inUse(list)) list.replaceChildren(...fresh);
}

// Whether there is more to come.
function show(page) {
  const said = page.querySelector(".messagelist");
  if (said) {
    document.querySelector(".messagelist")?.remove();
    document.getElementById("content").before(document.importNode(said, true));
  }
  update(document.getElementById("content"), page.getElementById("content"));
  every = Number(page.querySelector("script[data-every]")?.dataset.every ?? 0) * 1000;
  return every > 0;
}

function sayGone(address) {
  const note = document.createElement("p");
  note.className = "live-note";
  note.setAttribute("role", "status");
  const link = document.createElement("a");
  link.href = address;
  link.textContent = "Go on";
  note.append("This is not there any more, or you are logged out. The page shows what it was last. ", link);
  document.getElementById("content").prepend(note);
}

async function look() {
  try {
    const answer = await fetch(window.location.href, {signal: AbortSignal.timeout(PATIENCE)});
    if (answer.redirected) {
      sayGone(answer.url);
      return;
    }
    if (answer.ok && !show(new DOMParser().parseFromString(await answer.text(), "text/html"))) return;
  } catch (error) {
    // The site is away for a moment, or this page is left.
    if (!(error instanceof TypeError || error.name === "TimeoutError" || error.name === "AbortError")) throw error;
  }
  plan();
}

function plan() {
  window.clearTimeout(planned);
  if (!document.hidden) planned = window.setTimeout(look, every);
}

document.addEventListener("visibilitychange", () => every > 0 && plan());
plan();
