// Draws the charts of a page with uPlot: each from the figures beside it, in the words of its table, which stays for
// those who do not see it. One pointer and one zoom for all charts of a page, by hand or by key. Charts that say where
// their figures are to be had follow the broker while the page is visible.
"use strict";

{
  const EVERY = 20000; // milliseconds
  const PATIENCE = 10000;
  const HEIGHT = 220; // pixels
  const PATTERNS = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 2], [10, 4]];
  const DAY = 86400; // seconds
  const FONT = "12px system-ui, sans-serif";
  const STEPS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
  const SPANS = [[3600, "h"], [60, "min"], [1, "s"], [1e-3, "ms"]];
  const language = `${document.documentElement.lang || "en"}-u-nu-latn`;
  const numbers = new Intl.NumberFormat(language, {notation: "compact", maximumFractionDigits: 2});

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // The places of figures without neighbours, which no line leads to.
  function alone(plot, n) {
    const column = plot.data[n];
    const is = (at) => column[at] !== null && column[at] !== undefined;
    return [...column.keys()].filter((at) => is(at) && !is(at - 1) && !is(at + 1));
  }

  function element(name, properties, ...inside) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...inside);
    return made;
  }

  // A figure beside an axis.
  function short(unit, value) {
    if (unit === "rate") return `${numbers.format(value)}/s`;
    const sizes = {bytes: STEPS, seconds: SPANS}[unit];
    if (!sizes || !value) return numbers.format(value);
    const [size, sign] = sizes.find(([one]) => value >= one) ?? sizes.at(-1);
    return `${numbers.format(value / size)} ${sign}`;
  }

  // Times by the clock of the page; a browser that does not know its zone shows UTC, and says so.
  class Clock {
    constructor(zone) {
      try {
        this.#formats(zone);
      } catch {
        this.#formats("UTC");
      }
    }

    #formats(timeZone) {
      this.time = new Intl.DateTimeFormat(language, {hour: "2-digit", minute: "2-digit", hourCycle: "h23", timeZone});
      this.day = new Intl.DateTimeFormat(language, {month: "short", day: "numeric", timeZone});
      this.zone = timeZone;
    }

    // Beside an axis: hours, and days where one begins.
    labels(times, step) {
      return times.map((time) => {
        const date = new Date(time * 1000);
        const local = uPlot.tzDate(date, this.zone);
        const isDay = step >= DAY || (local.getHours() === 0 && local.getMinutes() === 0);
        return (isDay ? this.day : this.time).format(date);
      });
    }
  }

  class Chart {
    constructor(page, figure) {
      this.page = page;
      this.figure = figure;
      this.place = figure.querySelector(".plot");
      this.body = figure.querySelector("tbody");
      this.labels = [...figure.querySelectorAll("thead th")].slice(1).map((head) => head.textContent.trim());
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.hidden = new Set();
      this.wholeButton = element("button", {type: "button", className: "whole", hidden: true}, "Show the whole time");
      this.wholeButton.addEventListener("click", () => {
        page.zoom(null);
        this.plot.over.focus();
      });
      this.when = element("span", {className: "when"});
      this.values = this.labels.map(() => element("b"));
      const keys = this.labels.map((label, n) => this.#key(label, n));
      this.legend = element("p", {className: "legend"}, ...keys, this.when);
      this.spoken = element("p", {className: "visually-hidden", role: "status"});
      this.plot = new uPlot(this.#options(), this.#columns(), this.place);
      this.place.before(this.legend);
      this.place.after(this.spoken);
      figure.querySelector("figcaption span").after(this.wholeButton);
      this.#listen();
      this.show(null);
    }

    // A series' name and its figure; a click hides its line.
    #key(label, n) {
      const key = element("button", {type: "button", className: `key c${n + 1}`}, element("i"), `${label} `,
        this.values[n]);
      key.setAttribute("aria-pressed", "true");
      key.addEventListener("click", () => {
        if (!this.hidden.delete(n)) this.hidden.add(n);
        key.setAttribute("aria-pressed", String(!this.hidden.has(n)));
        this.plot.setData(this.#columns());
      });
      return key;
    }

    // Of stacked figures the sums, the highest first, so that each is seen above those below it.
    #columns() {
      const {times, values, stacked} = this.data;
      const shown = values.map((column, n) => (this.hidden.has(n) ? column.map(() => null) : column));
      if (!stacked) return [times, ...shown];
      const below = times.map(() => 0);
      const sums = shown.map((column) => column.map((value, n) => (value === null ? null : (below[n] += value))));
      return [times, ...sums.reverse()];
    }

    #series() {
      const {stacked, times, range} = this.data;
      const steps = uPlot.paths.stepped({align: range[0] < times[0] ? -1 : 1, extend: true});
      const series = this.labels.map((label, n) => {
        const paint = () => colour(`--chart-${n + 1}`);
        return stacked
          ? {label, stroke: paint, fill: paint, width: 0, paths: steps, points: {show: false}}
          : {label, stroke: paint, width: 2, dash: PATTERNS[n], points: {show: true, size: 5, filter: alone}};
      });
      return [{}, ...(stacked ? series.reverse() : series)];
    }

    #options() {
      const axis = {
        stroke: () => colour("--body-fg"), font: FONT, grid: {stroke: () => colour("--hairline-color"), width: 1},
        ticks: {show: false},
      };
      const {page, data} = this;
      return {
        width: this.place.clientWidth, height: HEIGHT, padding: [10, 16, 0, 0],
        tzDate: (time) => uPlot.tzDate(new Date(time * 1000), page.clock.zone),
        legend: {show: false},
        cursor: {
          // All charts of the page point to the same time; each selects for itself.
          sync: {key: page.key, filters: {pub: (type) => type !== "mousedown" && type !== "mouseup"}},
          drag: {x: true, y: false, setScale: false, dist: 5}, y: false, points: {size: 7},
          bind: {dblclick: () => () => page.zoom(null)},
        },
        scales: {
          x: {range: () => page.zoomed ?? this.data.range},
          y: {range: (plot, least, most) => [0, most > 0 ? uPlot.rangeNum(0, most, 0.1, true)[1] : 1]},
        },
        axes: [
          {...axis, size: 30, space: 70, values: (plot, times, n, space, step) => page.clock.labels(times, step)},
          {
            ...axis, size: 68, values: (plot, values) => values.map((value) => short(data.unit, value)),
            ...(data.unit === "count" && {incrs: [1, 2, 5].flatMap((n) => [...Array(15).keys()].map((e) => n * 10 ** e))
              .sort((one, other) => one - other)}),
          },
        ],
        series: this.#series(),
        hooks: {
          setCursor: [(plot) => this.values && this.show(plot.cursor.idx)],
          setSelect: [(plot) => this.#select(plot)],
          draw: [(plot) => this.#drawEvents(plot)],
        },
      };
    }

    #select(plot) {
      const {left, width} = plot.select;
      if (!width) return;
      plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
      this.page.zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
    }

    #drawEvents(plot) {
      const {ctx, bbox} = plot;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("--body-quiet-color");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
      for (const [time] of this.page.events) {
        const x = Math.round(plot.valToPos(time, "x", true)) + 0.5;
        if (x < bbox.left || x > bbox.left + bbox.width) continue;
        const tip = 5 * devicePixelRatio;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.beginPath();
        ctx.moveTo(x - tip, bbox.top - tip);
        ctx.lineTo(x + tip, bbox.top - tip);
        ctx.lineTo(x, bbox.top + tip);
        ctx.fill();
      }
      ctx.restore();
    }

    #listen() {
      const {over} = this.plot;
      over.tabIndex = 0;
      over.setAttribute("role", "img");
      over.addEventListener("keydown", (event) => this.#press(event));
      over.addEventListener("blur", () => this.plot.setCursor({left: -10, top: -10}));
      this.#describe();
      const fit = () => this.place.clientWidth && this.plot.setSize({width: this.place.clientWidth, height: HEIGHT});
      new ResizeObserver(fit).observe(this.place);
    }

    #describe() {
      const keys = "Arrow keys go through it, plus and minus zoom, Escape shows the whole time.";
      this.plot.over.setAttribute("aria-label", `${this.place.dataset.words} ${keys}`);
    }

    #press(event) {
      const {times} = this.data;
      const [from, until] = this.page.zoomed ?? this.data.range;
      const inside = [...times.keys()].filter((n) => times[n] >= from && times[n] <= until);
      const here = this.plot.cursor.idx ?? inside.at(-1);
      const move = {ArrowLeft: here - 1, ArrowRight: here + 1, Home: inside[0], End: inside.at(-1)}[event.key];
      const width = {"+": 0.5, "=": 0.5, "-": 2}[event.key];
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (move !== undefined) this.point(Math.min(Math.max(move, inside[0]), inside.at(-1)));
      else if (width) this.page.zoomAround(times[here], width);
      else if (event.key === "Escape") this.page.zoom(null);
      else return;
      event.preventDefault();
      if (this.plot.cursor.idx !== null) this.spoken.textContent = this.legend.textContent;
    }

    // Points to a place as the mouse does.
    point(n) {
      const left = this.plot.valToPos(this.data.times[n], "x");
      this.plot.setCursor({left, top: 10}, true, true);
    }

    // The figures of a place, or of the last that has any, in the words of the table.
    show(n) {
      const last = this.data.times.findLastIndex((_, one) => this.data.values.some((column) => column[one] !== null));
      const row = this.body.rows[n ?? Math.max(last, 0)];
      if (!row) return;
      this.values.forEach((value, one) => (value.textContent = row.cells[one + 1].textContent));
      const now = this.data.times[row.sectionRowIndex];
      const before = this.data.times[row.sectionRowIndex - 1] ?? this.data.range[0];
      const happened = n === null ? [] : this.page.events.filter(([time]) => time > before && time <= now);
      this.when.textContent = [row.cells[0].textContent.trim(), ...happened.map(([, , words]) => words)].join(", ");
    }

    update({rows, ...data}) {
      this.data = data;
      this.body.replaceChildren(...rows.map(([time, ...cells]) => {
        const head = element("th", {scope: "row"}, time);
        return element("tr", {}, head, ...cells.map((cell) => element("td", {}, cell)));
      }));
      if (data.values.flat().some(Boolean)) this.figure.querySelector(".no-figures")?.remove();
      this.plot.setData(this.#columns());
      this.show(this.plot.cursor.idx);
    }
  }

  // The charts of one place on a page.
  class Page {
    constructor(place, key) {
      const setting = JSON.parse(place.querySelector("script").textContent);
      this.place = place;
      this.key = key;
      this.events = setting.events;
      this.clock = new Clock(setting.zone);
      this.zoomed = null;
      this.charts = [];
      for (const figure of place.querySelectorAll(".chart:has(.plot)")) this.charts.push(new Chart(this, figure));
      this.planned = 0;
      this.address = place.dataset.address;
      if (!this.address) return;
      document.addEventListener("visibilitychange", () => this.plan());
      this.plan();
    }

    // From and until; null: all.
    zoom(range) {
      const whole = this.charts[0].data.range;
      const inside = range && [Math.max(range[0], whole[0]), Math.min(range[1], whole[1])];
      this.zoomed = inside && (inside[0] > whole[0] || inside[1] < whole[1]) ? inside : null;
      for (const {plot, data, wholeButton} of this.charts) {
        const [min, max] = this.zoomed ?? data.range;
        plot.setScale("x", {min, max});
        wholeButton.hidden = this.zoomed === null;
      }
    }

    zoomAround(time, times) {
      const [from, until] = this.zoomed ?? this.charts[0].data.range;
      const half = Math.max((until - from) * times, 120) / 2;
      this.zoom([time - half, time + half]);
    }

    repaint() {
      for (const {plot} of this.charts) plot.redraw(false, true);
    }

    plan() {
      window.clearTimeout(this.planned);
      if (!document.hidden) this.planned = window.setTimeout(() => this.look(), EVERY);
    }

    say(words) {
      const note = this.place.querySelector(".charts-note");
      if (note.textContent !== words) note.textContent = words;
    }

    async look() {
      try {
        const answer = await fetch(this.address, {signal: AbortSignal.timeout(PATIENCE)});
        if (answer.redirected || answer.status === 403) {
          this.say("You are logged out, or may not see this any more. Load the page again.");
          return;
        }
        if (answer.ok) this.update(await answer.json());
        this.say(answer.ok ? "" : "The site does not answer as it should; these charts are old.");
      } catch (error) {
        if (!(error instanceof TypeError || error.name === "TimeoutError" || error.name === "AbortError")) throw error;
        this.say("The site does not answer; these charts are old.");
      }
      this.plan();
    }

    update({charts, events}) {
      this.events = events;
      const list = this.place.querySelector(".events");
      list.hidden = events.length === 0;
      list.querySelector("ul").replaceChildren(...events.map(([, at, words]) => element("li", {}, `${at} ${words}`)));
      for (const chart of this.charts) {
        const now = charts[chart.figure.id.replace("chart-", "")];
        if (now) chart.update(now);
      }
    }
  }

  const pages = new Map();

  // Also of charts that another script has put there.
  function draw() {
    for (const place of document.querySelectorAll(".charts")) {
      if (!pages.has(place)) pages.set(place, new Page(place, `charts-${pages.size}`));
    }
  }

  function repaint() {
    for (const page of pages.values()) page.repaint();
  }

  draw();
  new MutationObserver(draw).observe(document.getElementById("content") ?? document.body, {
    childList: true, subtree: true,
  });
  new MutationObserver(repaint).observe(document.documentElement, {attributeFilter: ["data-theme"]});
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
