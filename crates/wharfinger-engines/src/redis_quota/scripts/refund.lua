-- Subtracts the charge of a file, once per outbox line. The ids stay until the next load, because a line may be delivered
-- again at any time.
local line, bytes, epoch = unpack(ARGV, 2)
local held = loaded_epoch()
if not held then return {'reload'} end
if tonumber(epoch) < tonumber(held) then return {'done'} end
if tonumber(epoch) > tonumber(held) then return {'later'} end
if redis.call('SADD', REFUNDED, line) == 0 then return {'done'} end
if redis.call('DECRBY', USED, bytes) < 0 then
  -- The counter would be negative, so the counters are invalid.
  redis.call('DEL', LOADED)
  return {'reload'}
end
return {'done', redis.call('SCARD', REFUNDED)}
