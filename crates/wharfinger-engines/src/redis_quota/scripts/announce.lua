-- Says that a load is coming, and gives it a name. Only a load that was announced to this very server is taken, and
-- only once: one that was on its way when the server went down must not bring old numbers back. The name is new each
-- time this runs, so that an announcement which is delivered again lets nothing in.
local load, seconds = unpack(ARGV, 2)
local name = load .. ':' .. table.concat(redis.call('TIME'), '.')
redis.call('HSET', LOADING, name, here())
redis.call('EXPIRE', LOADING, seconds)
return {'announced', name, loaded_epoch() or ''}
