// What is being uploaded, kept in IndexedDB with its bytes until the server has confirmed it: so a reload, a crash of
// the browser or a closed tab does not lose it. Where there is no IndexedDB nothing is kept, and nothing breaks.

const NAME = "wharfinger-uploads";

let opened = null;

function open() {
  opened ??= new Promise((resolve) => {
    try {
      const asked = indexedDB.open(NAME, 1);
      asked.onupgradeneeded = () => asked.result.createObjectStore("items", { keyPath: "key" });
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = () => resolve(null);
      asked.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

async function work(mode, act) {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("items", mode);
    const asked = act(transaction.objectStore("items"));
    transaction.oncomplete = () => resolve(asked?.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? asked?.error);
  });
}

export const put = (record) => work("readwrite", (items) => items.put(record)).catch(() => undefined);
export const remove = (key) => work("readwrite", (items) => items.delete(key)).catch(() => undefined);
export const find = (key) => work("readonly", (items) => items.get(key)).catch(() => undefined);
export const all = () => work("readonly", (items) => items.getAll()).then((found) => found ?? [], () => []);

/** Changes what is there and nothing else: bytes are put in later than the rest, because copying them takes time. */
export const change = (key, changes) => work("readwrite", (items) => {
  const asked = items.get(key);
  asked.onsuccess = () => asked.result && items.put({ ...asked.result, ...changes });
}).catch(() => undefined);

/** Whether the bytes can still be read: a browser may have lost them, or the person moved the file. */
export async function isReadable(file) {
  if (!(file instanceof Blob)) return false;
  try {
    await file.slice(0, Math.min(1, file.size)).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}
