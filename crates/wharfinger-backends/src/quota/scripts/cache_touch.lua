-- A mark outlives whatever was kept under it: one that is missing has nothing left to hold.
for _, mark in ipairs(KEYS) do
    redis.call('INCR', mark)
    redis.call('PEXPIRE', mark, ARGV[1])
end
return 1
