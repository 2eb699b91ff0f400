#!/usr/bin/perl
# A whole program for Redis Streams: produce, consume as a group, die, take over, give back, clean up.
# Prints each payload that was acknowledged. Usage: streams_program.pl host:port stream entries-left-at-the-end
use strict;
use warnings;
use Redis;

my ( $server, $stream, $left_over ) = @ARGV;
my $redis = Redis->new( server => $server, encoding => undef );

sub must { my ( $holds, $what ) = @_; die "$what\n" unless $holds }

must( $redis->ping eq 'PONG', 'ping' );
must( $redis->xgroup( 'CREATE', $stream, 'workers', '0', 'MKSTREAM' ) eq 'OK', 'xgroup create' );
eval { $redis->xgroup( 'CREATE', $stream, 'workers', '0' ) };
must( $@ =~ /BUSYGROUP/, "a second group of the name: $@" );

# Produce: alone, then as a pipeline.
my @ids = $redis->xadd( $stream, '*', 'n', 0, 'who', 'perl' );
for my $n ( 1 .. 99 ) {
    $redis->xadd( $stream, '*', 'n', $n, 'who', 'perl', sub { must( !$_[1], "xadd: " . ( $_[1] // '' ) ); push @ids, $_[0] } );
}
$redis->wait_all_responses;
must( @ids == 100, 'ids' );
must( $redis->xlen($stream) == 100, 'xlen' );
my $range = $redis->xrange( $stream, '-', '+', 'COUNT', 2 );
must( @$range == 2 && $range->[0][0] eq $ids[0] && $range->[1][1][1] == 1, 'xrange' );
must( $redis->xrevrange( $stream, '+', '-', 'COUNT', 1 )->[0][0] eq $ids[-1], 'xrevrange' );

sub entries {    # of the one stream in a reply of XREADGROUP
    my ($read) = @_;
    return () unless $read;
    must( $read->[0] eq $stream, 'the name of the stream' );
    return @{ $read->[1] };
}

sub done {
    my @entries = @_;
    return unless @entries;
    my $count = $redis->xack( $stream, 'workers', map { $_->[0] } @entries );
    must( $count == @entries, "xack: $count" );
    for my $entry (@entries) { my %fields = @{ $entry->[1] }; must( $fields{who} eq 'perl', 'who' ); print "$fields{n}\n" }
}

# Ann takes ten and acknowledges six; the others stay pending.
my @ann = entries( $redis->xreadgroup( 'GROUP', 'workers', 'ann', 'COUNT', 10, 'STREAMS', $stream, '>' ) );
must( @ann == 10 && $ann[0][0] eq $ids[0], 'xreadgroup' );
done( @ann[ 0 .. 5 ] );
my $pending = $redis->xpending( $stream, 'workers' );
must( $pending->[0] == 4 && $pending->[1] eq $ids[6] && $pending->[3][0][0] eq 'ann', 'xpending' );
must( @{ $redis->xpending( $stream, 'workers', '-', '+', 10, 'ann' ) } == 4, 'xpending of ann' );
my @again = entries( $redis->xreadgroup( 'GROUP', 'workers', 'ann', 'STREAMS', $stream, '0' ) );
must( "@{[ map { $_->[0] } @again ]}" eq "@ids[ 6 .. 9 ]", 'what ann has not acknowledged' );
must( @{ $redis->xclaim( $stream, 'workers', 'ann', 0, @ids[ 6 .. 7 ], 'JUSTID' ) } == 2, 'xclaim' );
done(@again);

# Bob deletes one that he does not want, and works off the rest; one read waits for an entry that comes later.
must( $redis->xdel( $stream, $ids[99] ) == 1, 'xdel' );
while ( my @bob = entries( $redis->xreadgroup( 'GROUP', 'workers', 'bob', 'COUNT', 25, 'BLOCK', 50, 'STREAMS', $stream, '>' ) ) ) {
    done(@bob);
}
if ( my $child = fork ) {
    my @late = entries( $redis->xreadgroup( 'GROUP', 'workers', 'bob', 'BLOCK', 60000, 'STREAMS', $stream, '>' ) );
    must( @late == 1, 'a read that waits' );
    done(@late);
    waitpid $child, 0;
    must( $? == 0, 'the other process' );
}
else {
    select undef, undef, undef, 0.2;
    Redis->new( server => $server, encoding => undef )->xadd( $stream, '*', 'n', 100, 'who', 'perl' );
    exit 0;
}
my $left = $redis->xautoclaim( $stream, 'workers', 'cid', 0, '0-0' );
must( $left->[0] eq '0-0' && !@{ $left->[1] }, 'xautoclaim' );
must( $redis->xpending( $stream, 'workers' )->[0] == 0, 'nothing pending' );
my %info = @{ $redis->xinfo( 'STREAM', $stream ) };
must( $info{length} == $left_over && $info{groups} == 1, 'xinfo stream' );
must( $redis->xgroup( 'DESTROY', $stream, 'workers' ) == 1, 'xgroup destroy' );
$redis->quit;
