-- Announces a load and returns its name. A load is accepted only once, and only by the server process that knows its
-- announcement. So a load that was sent before a restart cannot restore old counters. Each run creates a new name, so a
-- repeated announcement does not allow a second load.
local load, seconds = unpack(ARGV, 2)
local name = load .. ':' .. table.concat(redis.call('TIME'), '.')
redis.call('HSET', LOADING, name, writer_id())
redis.call('EXPIRE', LOADING, seconds)
return {'announced', name, loaded_epoch() or ''}
