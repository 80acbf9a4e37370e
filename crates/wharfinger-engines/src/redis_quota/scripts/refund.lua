-- Takes off what a file was charged, once for each line of the outbox. The ids are kept until the next load: a
-- second delivery may come at any time, also after the line is gone.
local line, bytes, epoch = unpack(ARGV, 2)
local held = loaded_epoch()
if not held then return {'reload'} end
if tonumber(epoch) < tonumber(held) then return {'done'} end
if tonumber(epoch) > tonumber(held) then return {'later'} end
if redis.call('SADD', REFUNDED, line) == 0 then return {'done'} end
if redis.call('DECRBY', USED, bytes) < 0 then
  -- More was given back than was ever counted: nothing here can be counted on.
  redis.call('DEL', LOADED)
  return {'reload'}
end
return {'done', redis.call('SCARD', REFUNDED)}
