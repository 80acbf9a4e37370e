-- Removes the reservation of an attempt that certainly wrote nothing to the catalog.
local id = ARGV[2]
if not loaded_epoch() then return {'reload'} end
local size = redis.call('HGET', INFLIGHT, id)
if size then
  redis.call('HDEL', INFLIGHT, id)
  redis.call('DECRBY', USED, size)
end
return {'done'}
