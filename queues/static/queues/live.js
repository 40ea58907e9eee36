// Keeps a page of what changes by itself up to date: fields of a form, tables marked `data-live`, and the rows of a list.
// A list whose rows are being pointed at or chosen keeps its rows and their order; only their figures change.
"use strict";

const EVERY = 2000; // milliseconds
const PATIENCE = 10000;

let planned = 0;

function key(row) {
  return row.querySelector("th a")?.getAttribute("href") ?? "";
}

function fill(old, fresh) {
  if (old.innerHTML !== fresh.innerHTML && !old.contains(document.activeElement)) old.innerHTML = fresh.innerHTML;
}

function fillRow(old, fresh) {
  const cells = [...fresh.cells];
  [...old.cells].forEach((cell, n) => {
    if (cells[n] && !cell.classList.contains("action-checkbox-column") && !cell.querySelector("input")) fill(cell, cells[n]);
  });
}

function inUse(list) {
  return list.matches(":hover") || list.contains(document.activeElement) || list.querySelector("input:checked") !== null;
}

function showList(list, fresh) {
  const known = new Map([...list.tBodies[0].rows].map((row) => [key(row), row]));
  const rows = [...fresh.tBodies[0].rows];
  if (inUse(list)) {
    for (const row of rows) if (known.has(key(row))) fillRow(known.get(key(row)), row);
    return;
  }
  list.tBodies[0].replaceChildren(...rows.map((row) => {
    const old = known.get(key(row));
    if (!old) return document.adoptNode(row);
    fillRow(old, row);
    return old;
  }));
}

function show(page) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (fresh) fill(old, fresh);
  }
  const fields = page.querySelectorAll("#content-main .readonly");
  document.querySelectorAll("#content-main .readonly").forEach((old, n) => fields[n] && fill(old, fields[n]));
  const list = document.getElementById("result_list");
  const fresh = page.getElementById("result_list");
  if (list && fresh) showList(list, fresh);
}

async function look() {
  try {
    const answer = await fetch(window.location.href, {signal: AbortSignal.timeout(PATIENCE)});
    if (answer.redirected) {
      window.location.assign(answer.url);
      return;
    }
    if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html"));
  } catch (error) {
    if (!(error instanceof TypeError || error.name === "TimeoutError" || error.name === "AbortError")) throw error;
  }
  plan();
}

function plan() {
  window.clearTimeout(planned);
  if (!document.hidden) planned = window.setTimeout(look, EVERY);
}

document.addEventListener("visibilitychange", plan);
plan();
