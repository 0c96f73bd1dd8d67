"use strict";
/* Keeps all files of this page at the first load, so that it works without a network. Version and
   files are written by `medapps export`; a new export is a new version. */
const VERSION = "VERSION";
const FILES = ["FILES"];
const PREFIX = `medapps ${self.registration.scope} `;
const CACHE = PREFIX + VERSION;

self.addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const cache = await caches.open(CACHE);
    const fresh = ["./", ...FILES].map((name) => new Request(name, { cache: "no-cache" }));
    await cache.addAll(fresh);
  })());
});

/* A newer version waits until the page asks for it, or is closed: files of two versions never mix. */
self.addEventListener("message", (event) => {
  if (event.data === "take over") self.skipWaiting();
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    for (const name of await caches.keys())
      if (name.startsWith(PREFIX) && name !== CACHE) await caches.delete(name);
  })());
});

self.addEventListener("fetch", (event) => {
  const address = new URL(event.request.url);
  if (event.request.method !== "GET" || address.origin !== self.location.origin) return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE);
    const wanted = event.request.mode === "navigate" ? "./" : event.request;
    return (await cache.match(wanted, { ignoreSearch: true })) || fetch(event.request);
  })());
});
