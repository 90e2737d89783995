"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const card = document.getElementById("card");
  const text = document.getElementById("text");
  const links = [...text.querySelectorAll("a[data-p]")];
  const documents = new Map(); // index of a source -> its details element
  for (const each of document.querySelectorAll("details[data-source]")) documents.set(+each.dataset.source, each);
  const NEAR = 90; // units of neighbouring text on each side
  let current = null; // the part that the card speaks of
  let pinned = false; // by a tap or the keyboard: it stays when the pointer leaves
  let tapped = false;

  // One stop of the Tab key for the whole text: arrows go from part to part.
  let stop = links[0];
  for (const link of links) {
    link.tabIndex = -1;
    if (!link.hasAttribute("href")) link.setAttribute("role", "button");
  }
  if (stop) stop.tabIndex = 0;
  function moveStop(link) {
    stop.tabIndex = -1;
    link.tabIndex = 0;
    stop = link;
  }

  function add(parent, name, content, kind) {
    const element = document.createElement(name);
    if (kind) element.className = kind;
    if (content !== undefined) element.textContent = content;
    return parent.appendChild(element);
  }
  const number = new Intl.NumberFormat("en");
  const label = (place) => `characters ${number.format(place[1])} to ${number.format(place[2])}`;
  const bodyOf = (source) => documents.get(source)?.querySelector(".doc");
  const texts = new Map();
  function textOf(source) {
    if (!texts.has(source)) texts.set(source, bodyOf(source)?.textContent ?? null);
    return texts.get(source);
  }

  function show(link, pin) {
    pinned = pin;
    if (current === link && !card.hidden) return;
    current?.classList.remove("now");
    current = link;
    link.classList.add("now");
    const [place, ...ties] = data.pieces[+link.dataset.p];
    card.replaceChildren();
    const where = add(card, "p", undefined, "where");
    where.append(`${data.numbers[place[0]]} `);
    add(where, "bdi", data.names[place[0]]);
    where.append(`, ${label(place)}`);
    const whole = textOf(place[0]);
    if (whole !== null) {
      const near = add(card, "p", undefined, "near");
      const from = Math.max(0, place[3] - NEAR);
      const to = Math.min(whole.length, place[4] + NEAR);
      near.append(from ? "…" : "", whole.slice(from, place[3]).toWellFormed());
      const inside = whole.slice(place[3], place[4]);
      add(near, "b", inside.length > 3 * NEAR ? `${inside.slice(0, NEAR)} … ${inside.slice(-NEAR)}`.toWellFormed() : inside);
      near.append(whole.slice(place[4], to).toWellFormed(), to < whole.length ? "…" : "");
      jumpButton("Show in source", place);
    }
    if (ties.length) {
      add(card, "p", ties.length === 1 ? "The same text also stands in:" : `The same text also stands in ${ties.length} places:`);
      for (const tie of ties) jumpButton(`${data.numbers[tie[0]]} ${short(data.names[tie[0]])}, ${number.format(tie[1])}`, tie);
    }
    card.hidden = false;
    put(link);
  }
  const short = (name) => (name.length > 40 ? `${name.slice(0, 38)}…`.toWellFormed() : name);
  function jumpButton(content, place) {
    if (textOf(place[0]) === null) return add(card, "p", content);
    const button = add(card, "button", content);
    button.type = "button";
    button.addEventListener("click", () => jump(place));
    return button;
  }
  function put(link) {
    if (matchMedia("(max-width: 52rem)").matches) {
      card.style.left = card.style.top = "";
      return;
    }
    const boxes = link.getClientRects();
    const box = boxes[0];
    if (!box) return;
    const last = boxes[boxes.length - 1];
    const below = last.bottom + 8 + card.offsetHeight < innerHeight;
    card.style.left = `${Math.max(8, Math.min(box.left, innerWidth - card.offsetWidth - 16))}px`;
    card.style.top = `${Math.max(8, below ? last.bottom + 8 : box.top - card.offsetHeight - 8)}px`;
  }
  function hide() {
    card.hidden = true;
    pinned = false;
    current?.classList.remove("now");
    current = null;
  }

  function rangeOf(element, start, end) {
    const range = document.createRange();
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    let at = 0;
    let begun = false;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      if (!begun && start < at + node.length) {
        range.setStart(node, start - at);
        begun = true;
      }
      if (begun && end <= at + node.length) {
        range.setEnd(node, end - at);
        return range;
      }
      at += node.length;
    }
    return null;
  }
  function jump(place) {
    const details = documents.get(place[0]);
    const body = bodyOf(place[0]);
    if (!details || !body) return;
    details.open = true;
    const range = rangeOf(body, place[3], place[4]);
    if (!range) return;
    if (window.Highlight) CSS.highlights.set("jumped", new Highlight(range));
    const narrow = matchMedia("(max-width: 52rem)").matches;
    const target = range.startContainer.parentElement;
    if (narrow) target.scrollIntoView({ block: "start" });
    else { // in its own frame: scrollIntoView would move the window, and the text with it
      const frame = details.closest("aside");
      frame.scrollTop += target.getBoundingClientRect().top - frame.getBoundingClientRect().top;
    }
    // Blocks on the way are laid out only when they come near, and move what is below them.
    let turns = 8;
    const settle = () => {
      const box = range.getBoundingClientRect();
      const frame = narrow ? document.scrollingElement : details.closest("aside");
      const top = narrow ? 0 : frame.getBoundingClientRect().top;
      const off = box.top - top - (narrow ? innerHeight : frame.clientHeight) / 3;
      const before = frame.scrollTop;
      frame.scrollTop += off;
      if (--turns && (turns > 4 || Math.abs(frame.scrollTop - before) > 2)) requestAnimationFrame(settle);
      else if (narrow) showWayBack();
    };
    requestAnimationFrame(settle);
  }
  function showWayBack() {
    const from = current;
    card.replaceChildren();
    const button = add(card, "button", "Back to the text");
    button.type = "button";
    button.addEventListener("click", () => {
      hide();
      from?.scrollIntoView({ block: "center" });
    });
    pinned = true;
  }

  const partOf = (event) => event.target.closest?.("#text a[data-p]");
  let leaving = 0;
  text.addEventListener("pointerover", (event) => {
    const link = partOf(event);
    if (event.pointerType !== "mouse" || !link) return;
    clearTimeout(leaving);
    show(link, false);
  });
  for (const each of [text, card]) {
    each.addEventListener("pointerout", (event) => {
      if (event.pointerType !== "mouse" || pinned) return;
      clearTimeout(leaving);
      leaving = setTimeout(hide, 250);
    });
  }
  card.addEventListener("pointerover", () => clearTimeout(leaving));
  text.addEventListener("pointerdown", (event) => { tapped = event.pointerType !== "mouse"; });
  text.addEventListener("focusin", (event) => {
    const link = partOf(event);
    if (!link) return;
    moveStop(link);
    if (link.matches(":focus-visible")) show(link, true);
  });
  text.addEventListener("click", (event) => {
    const link = partOf(event);
    if (!link) return;
    event.preventDefault();
    show(link, true);
    if (!tapped || event.detail === 0) jump(data.pieces[+link.dataset.p][0]);
    tapped = false;
  });
  document.addEventListener("click", (event) => {
    if (!card.hidden && !card.contains(event.target) && !partOf(event)) hide();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const link = partOf(event);
    if (!link || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = links.indexOf(link);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: links.length - 1 }[event.key];
    if ((event.key === "Enter" || event.key === " ") && !link.hasAttribute("href")) link.click();
    if (next === undefined || !links[next]) return;
    event.preventDefault();
    links[next].focus();
    links[next].scrollIntoView({ block: "nearest" });
    put(links[next]);
  });
  addEventListener("scroll", () => { if (!pinned && !card.hidden) hide(); }, { passive: true });
})();
