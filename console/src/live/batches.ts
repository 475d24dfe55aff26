export interface Batch {
  batch: number;
  at: number; // seconds since 1970, when it was committed
  watermark: number | null; // seconds since 1970
  in: number;
}

const MOST = 240;

/** The newest batches of a pipeline, oldest first, from the ledger. */
export async function batchesOf(pipeline: string, version: number): Promise<Batch[]> {
  const name = pipeline.replaceAll("'", "''");
  const sql = `select batch, committed_at, watermark_at, in_ from hw_batches where pipeline = '${name}' and version = ${Math.trunc(version)} order by batch desc limit ${MOST}`;
  try {
    const answer = await fetch("/api/sql", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ sql, limit: MOST }),
    });
    if (!answer.ok) return [];
    const { rows } = (await answer.json()) as { rows: [number, string, string | null, number][] };
    return rows
      .map(([batch, at, watermark, read]) => ({
        batch,
        at: Date.parse(at) / 1000,
        watermark: watermark === null ? null : Date.parse(watermark) / 1000,
        in: read,
      }))
      .reverse();
  } catch {
    return [];
  }
}
